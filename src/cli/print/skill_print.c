/* skill_print: see skill_print.h. */
#include "cli/print/skill_print.h"

#include "base/json_write.h"
#include "cli/print/rows.h"
#include "print/outlet.h"

#include <stdio.h>
#include <string.h>

enum { ROWS_SHOWN = 8 };

static const char *const states[] = {[PB_SKILL_ROWS] = "rows",
                                     [PB_SKILL_EMPTY] = "empty",
                                     [PB_SKILL_SKIPPED] = "skipped",
                                     [PB_SKILL_FAILED] = "failed",
                                     [PB_SKILL_HINT] = "hint"};

static void list_json(const struct pb_skills *skills)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '[');
    for (size_t i = 0; i < skills->n; i++) {
        const struct pb_skill *s = &skills->at[i];
        pb_json_line(&w, 2);
        pb_json_open(&w, NULL, '{');
        pb_json_put_text(&w, "id", s->id);
        pb_json_put_text(&w, "title", s->title);
        pb_json_put_text(&w, "about", s->about);
        pb_json_put_text(&w, "category", s->category);
        pb_json_put_text(&w, "folder", s->folder);
        pb_json_put_text(&w, "broken", s->broken[0] ? s->broken : NULL);
        pb_json_open(&w, "parameters", '{');
        for (uint32_t p = pb_skill_first(s, pb_skill_part(s, "parameters")); p; p = s->doc.nodes[p].next) {
            char name[PB_SKILL_NAME], value[PB_SKILL_TEXT];
            if (pb_skill_get(s, p, "name", name, sizeof(name))[0])
                pb_json_put_text(&w, name, pb_skill_get(s, p, "default", value, sizeof(value)));
        }
        pb_json_close(&w);
        pb_json_close(&w);
    }
    pb_json_line(&w, 0);
    pb_json_close(&w);
    putchar('\n');
}

void pb_skills_print(const struct pb_skills *skills, bool json)
{
    if (json) {
        list_json(skills);
        return;
    }
    for (size_t i = 0; i < skills->n; i++) {
        const struct pb_skill *s = &skills->at[i];
        printf("%-22s %-12s ", s->id, s->category);
        if (s->broken[0])
            pb_put_between(stdout, "broken: ", s->broken, "\n");
        else
            pb_put_between(stdout, "", s->about[0] ? s->about : s->title, s->text ? "\n" : " (no steps)\n");
    }
}

static void put_rows(const struct pb_skill_step *s)
{
    struct pb_rows rows;

    pb_rows_init(&rows, (const char *const *)s->columns, s->ncolumns);
    rows.remedy = "--json shows all";
    for (size_t i = 0; i < s->nrows && i < ROWS_SHOWN; i++)
        for (unsigned k = 0; k < s->ncolumns; k++) {
            const char *cell = s->cells[i * s->ncolumns + k];
            if (cell && s->numeric[k])
                pb_rows_number(&rows, "%.60s", cell);
            else
                pb_rows_text(&rows, cell);
        }
    pb_rows_print(&rows, PB_FORMAT_TABLE, NULL, NULL);
    pb_rows_done(&rows);
    if (s->nrows > ROWS_SHOWN)
        printf("and %zu rows more%s (--json shows all)\n", s->nrows - ROWS_SHOWN, s->cut ? " at least" : "");
}

static void put_step(const struct pb_skill_step *s)
{
    putchar('\n');
    pb_put_name(stdout, s->id);
    if (s->title[0])
        pb_put_between(stdout, ": ", s->title, "");
    putchar('\n');
    if (s->state == PB_SKILL_ROWS)
        put_rows(s);
    else if (s->state == PB_SKILL_EMPTY)
        pb_put_between(stdout, "  no rows", s->text[0] ? ": " : "", s->text);
    else
        pb_put_between(stdout,
                       s->state == PB_SKILL_HINT     ? "  "
                       : s->state == PB_SKILL_FAILED ? "  failed: "
                                                     : "  skipped: ",
                       s->text, "");
    if (s->state != PB_SKILL_ROWS)
        putchar('\n');
}

static void put_remarks(const struct pb_skill_result *result)
{
    putchar('\n');
    for (size_t i = 0; i < result->nremarks; i++) {
        const struct pb_skill_remark *r = &result->remarks[i];
        pb_put_between(stdout, "remark   ", r->says, "");
        pb_put_between(stdout, " (", r->rule, "");
        pb_put_between(stdout, r->severity[0] ? ", " : "", r->severity, ")\n");
    }
    for (size_t i = 0; i < result->nunjudged; i++) {
        pb_put_between(stdout, "unjudged ", result->unjudged[i].rule, ": ");
        pb_put_between(stdout, "", result->unjudged[i].says, "\n");
    }
    if (!result->nremarks)
        puts("No rule of the playbook has anything to remark.");
}

void pb_skill_result_print(const struct pb_skill *skill, const struct pb_skill_result *result,
                           const char *target)
{
    if (pb_color())
        fputs(pb_style(PB_BOLD), stdout);
    pb_put_between(stdout, "", skill->title, "\n");
    if (pb_color())
        fputs(pb_style(PB_PLAIN), stdout);
    for (size_t i = 0; i < result->nsteps; i++)
        put_step(&result->steps[i]);
    put_remarks(result);
    if (result->summary[0]) {
        putchar('\n');
        pb_put_plain(stdout, result->summary);
    }
    for (size_t i = 0; i < result->nnext; i++)
        pb_put_between(stdout, i ? "         " : "\nnext     ", result->next[i], "\n");
    pb_put_between(stdout, "\nA playbook compares numbers. What is wrong, with proof: probing -t ", target,
                   " diagnose\n");
}

static void put_step_json(struct pb_json_writer *w, const struct pb_skill_step *s)
{
    pb_json_line(w, 4);
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "id", s->id);
    pb_json_put_text(w, "title", s->title);
    pb_json_put_text(w, "state", states[s->state]);
    pb_json_put_text(w, "text", s->text[0] ? s->text : NULL);
    pb_json_open(w, "columns", '[');
    for (unsigned k = 0; k < s->ncolumns; k++)
        pb_json_put_text(w, NULL, s->columns[k]);
    pb_json_close(w);
    pb_json_put_bool(w, "cut", s->cut);
    pb_json_open(w, "rows", '[');
    for (size_t i = 0; i < s->nrows; i++) {
        pb_json_line(w, 6);
        pb_json_open(w, NULL, '[');
        for (unsigned k = 0; k < s->ncolumns; k++) {
            const char *cell = s->cells[i * s->ncolumns + k];
            bool number = cell && s->numeric[k] && cell[0] && strspn(cell, "-.0123456789e+") == strlen(cell);
            if (number)
                pb_json_put_number(w, NULL, "%s", cell);
            else
                pb_json_put_text(w, NULL, cell);
        }
        pb_json_close(w);
    }
    pb_json_close(w);
    pb_json_close(w);
}

static void put_remarks_json(struct pb_json_writer *w, const char *key, const struct pb_skill_remark *at,
                             size_t n)
{
    pb_json_line(w, 2);
    pb_json_open(w, key, '[');
    for (size_t i = 0; i < n; i++) {
        pb_json_line(w, 4);
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "kind", "skill");
        pb_json_put_text(w, "sure", "remark");
        pb_json_put_text(w, "rule", at[i].rule);
        pb_json_put_text(w, "severity", at[i].severity);
        pb_json_put_text(w, "says", at[i].says);
        pb_json_close(w);
    }
    pb_json_close(w);
}

void pb_skill_result_print_json(const struct pb_skill *skill, const struct pb_skill_result *result)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '{');
    pb_json_put_text(&w, "skill", skill->id);
    pb_json_put_text(&w, "title", skill->title);
    put_remarks_json(&w, "remarks", result->remarks, result->nremarks);
    put_remarks_json(&w, "unjudged", result->unjudged, result->nunjudged);
    pb_json_line(&w, 2);
    pb_json_open(&w, "steps", '[');
    for (size_t i = 0; i < result->nsteps; i++)
        put_step_json(&w, &result->steps[i]);
    pb_json_close(&w);
    pb_json_line(&w, 2);
    pb_json_put_text(&w, "summary", result->summary);
    pb_json_open(&w, "next", '[');
    for (size_t i = 0; i < result->nnext; i++)
        pb_json_put_text(&w, NULL, result->next[i]);
    pb_json_close(&w);
    pb_json_line(&w, 0);
    pb_json_close(&w);
    putchar('\n');
}
