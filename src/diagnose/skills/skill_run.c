/* skill_run: see skill_run.h. */
#include "diagnose/skills/skill_run.h"

#include "ask/query.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/time.h"
#include "base/vector.h"
#include "diagnose/skills/skill_text.h"
#include "diagnose/skills/skill_when.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { STEPS_MAX = 64, RULES_MAX = 128, NEXT_MAX = 16, COLUMNS_MAX = 100 };

struct skill_run {
    const struct pb_ask *ask;
    const struct pb_skill_request *q;
    struct pb_skill_values values;
    struct pb_skill_result *ret;
    uint64_t until;
    size_t bytes; /* of all cells: they end where this is used up */
};

static void step_done(struct pb_skill_step *s)
{
    for (unsigned i = 0; i < s->ncolumns; i++)
        free(s->columns[i]);
    for (size_t i = 0; i < s->nrows * s->ncolumns; i++)
        free(s->cells[i]);
    free(s->columns);
    free(s->cells);
    free(s->numeric);
}

void pb_skill_result_done(struct pb_skill_result *result)
{
    for (size_t i = 0; i < result->nsteps; i++)
        step_done(&result->steps[i]);
    for (size_t i = 0; i < result->nnext; i++)
        free(result->next[i]);
    free(result->steps);
    free(result->remarks);
    free(result->unjudged);
    free(result->summary);
    free(result->next);
    *result = (struct pb_skill_result){0};
}

/* --- a statement --- */

static bool is_numeric(const char *type)
{
    static const char *const texts[] = {"VARCHAR", "TIMESTAMP", "DATE",     "TIME",
                                        "BOOLEAN", "BLOB",      "INTERVAL", "UUID"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (strncasecmp(type, texts[i], strlen(texts[i])) == 0)
            return false;
    return !strpbrk(type, "[(") || strncasecmp(type, "DECIMAL", 7) == 0;
}

static int take_columns(struct pb_skill_step *s, const struct pb_sql_event *event)
{
    if (event->n > COLUMNS_MAX)
        return -E2BIG;
    s->columns = calloc(event->n + 1, sizeof(*s->columns));
    s->numeric = calloc(event->n + 1, sizeof(*s->numeric));
    if (!s->columns || !s->numeric)
        return -ENOMEM;
    for (; s->ncolumns < event->n; s->ncolumns++) {
        if (!(s->columns[s->ncolumns] = strdup(event->columns[s->ncolumns].name)))
            return -ENOMEM;
        s->numeric[s->ncolumns] = is_numeric(event->columns[s->ncolumns].type);
    }
    return 0;
}

static int take_rows(struct skill_run *run, struct pb_skill_step *s, const struct pb_batch *batch,
                     struct pb_row_text *row)
{
    for (uint32_t i = 0; i < batch->nrows; i++) {
        if (s->nrows == PB_SKILL_ROWS_MAX || !run->bytes) {
            s->cut = true;
            return 0;
        }
        int r = pb_row_text_take(row, batch, i);
        char **more = r < 0 ? NULL : reallocarray(s->cells, (s->nrows + 1) * s->ncolumns, sizeof(*more));
        if (!more)
            return -ENOMEM;
        s->cells = more;
        for (unsigned k = 0; k < s->ncolumns; k++) {
            const struct pb_sql_cell *c = &row->cells[k];
            size_t n = c->length < run->bytes ? c->length : run->bytes;
            char *text = c->kind == PB_SQL_NULL ? NULL : strndup(c->text, n);
            if (text)
                pb_text_clean(text);
            run->bytes -= n;
            more[s->nrows * s->ncolumns + k] = text;
        }
        s->nrows++;
    }
    return 0;
}

/* Reads the rows of one statement into s. Where it fails, s->text says why. */
static int run_statement(struct skill_run *run, const char *sql, struct pb_skill_step *s)
{
    uint64_t now = pb_now_ns();
    struct pb_row_text row = {0};
    struct pb_sql_event event;
    struct pb_query *q = NULL;
    struct pb_err err = {0};
    unsigned results = 0;

    const struct pb_query_request request = {
        .sql = sql,
        .length = strlen(sql),
        .timeout_ms = now < run->until ? (unsigned)((run->until - now) / PB_NS_PER_MS) + 1 : 1};
    int r = pb_query_open(run->ask, run->q->targets, &request, &q, &err);
    while (r == 0 && !s->cut && (r = pb_query_next(q, &event, &err)) > 0) {
        r = 0;
        if (event.kind == PB_SQL_EVENT_COLUMNS && results++)
            r = pb_fail(&err, -EINVAL, "it is more than one statement");
        else if (event.kind == PB_SQL_EVENT_COLUMNS)
            r = take_columns(s, &event);
        else if (event.kind == PB_SQL_EVENT_BATCH)
            r = take_rows(run, s, &event.batch, &row);
    }
    if (q)
        pb_query_close(q);
    pb_row_text_done(&row);
    s->state = r < 0 ? PB_SKILL_FAILED : s->nrows ? PB_SKILL_ROWS : PB_SKILL_EMPTY;
    if (r < 0) {
        /* The lines below the first point into the statement. */
        const char *why = pb_err_text(&err, r);
        snprintf(s->text, sizeof(s->text), "%.*s", (int)strcspn(why, "\n"), why);
        pb_text_clean(s->text);
    }
    return r < 0 ? r : 0;
}

/* --- steps --- */

/* What stands in the place of an address of the original's service. */
static void put_api_hint(const struct skill_run *run, const char *path, struct pb_skill_step *s)
{
    if (strstr(path, "/callstack"))
        snprintf(s->text, sizeof(s->text), "the stacks: probing -t %s backtrace", run->q->target);
    else if (strstr(path, "/flight-recorder"))
        snprintf(s->text, sizeof(s->text),
                 "PyTorch's Flight Recorder is not read: python.comm_collective has the collectives");
    else if (strstr(path, "flamegraph"))
        snprintf(s->text, sizeof(s->text), "a flame graph: probing -t %s flamegraph", run->q->target);
    else
        snprintf(s->text, sizeof(s->text), "no command of ours answers %.200s", path);
}

static void put_hint(const struct skill_run *run, uint32_t node, const char *type, struct pb_skill_step *s)
{
    char first[PB_SKILL_TEXT], second[PB_SKILL_TEXT];

    s->state = PB_SKILL_HINT;
    if (strcmp(type, "api") == 0) {
        put_api_hint(run, pb_skill_get(run->q->skill, node, "path", first, sizeof(first)), s);
    } else if (strcmp(type, "config") == 0) {
        pb_skill_get(run->q->skill, node, "key", first, sizeof(first));
        pb_skill_get(run->q->skill, node, "value", second, sizeof(second));
        snprintf(s->text, sizeof(s->text), "a setting, which is not changed: probing -t %s config %s=%s",
                 run->q->target, first, second);
    } else {
        pb_skill_get(run->q->skill, node, "view", first, sizeof(first));
        snprintf(s->text, sizeof(s->text), "the page (probing serve) shows it: %.200s", first);
    }
    pb_text_clean(s->text);
}

/* Whether a step is to be run; if not, s says why. */
static bool is_wanted(struct skill_run *run, uint32_t node, struct pb_skill_step *s)
{
    char text[PB_SKILL_TEXT];

    s->state = PB_SKILL_SKIPPED;
    pb_skill_get(run->q->skill, node, "platform", text, sizeof(text));
    if (text[0] && strcasecmp(text, "linux") != 0) {
        snprintf(s->text, sizeof(s->text), "it is for another system: %.100s", text);
        return false;
    }
    pb_skill_get(run->q->skill, node, "when", text, sizeof(text));
    if (!text[0])
        return true;
    _cleanup_free_ char *when = pb_skill_words(&run->values, NULL, NULL, text);
    if (!when || strcmp(when, "true") == 0 || strcmp(when, "always") == 0)
        return when;
    bool off = strcmp(when, "false") == 0 || strcmp(when, "never") == 0;
    snprintf(s->text, sizeof(s->text),
             off ? "its condition is off: %.200s" : "its condition is not known: %.200s", text);
    pb_text_clean(s->text);
    return false;
}

static void run_sql(struct skill_run *run, uint32_t node, struct pb_skill_step *s)
{
    _cleanup_free_ char *template = pb_skill_copy(run->q->skill, node, "sql");
    struct pb_err err = {0};
    char on_empty[32];

    _cleanup_free_ char *sql = template ? pb_skill_sql(&run->values, template, &err) : NULL;
    if (!sql || !sql[0]) {
        s->state = PB_SKILL_FAILED;
        snprintf(s->text, sizeof(s->text), "%s", err.text[0] ? err.text : "it has no statement");
        return;
    }
    run_statement(run, sql, s);
    if (s->state != PB_SKILL_EMPTY)
        return;
    pb_skill_get(run->q->skill, node, "empty_message", s->text, sizeof(s->text));
    pb_text_clean(s->text);
    run->ret->ended =
        strcmp(pb_skill_get(run->q->skill, node, "on_empty", on_empty, sizeof(on_empty)), "abort") == 0;
}

static void run_step(struct skill_run *run, uint32_t node, struct pb_skill_step *s)
{
    const struct pb_skill *skill = run->q->skill;
    char type[32];

    pb_skill_get(skill, node, "id", s->id, sizeof(s->id));
    if (!pb_skill_get(skill, node, "title_en", s->title, sizeof(s->title))[0])
        pb_skill_get(skill, node, "title", s->title, sizeof(s->title));
    pb_text_clean(s->id);
    pb_text_clean(s->title);
    pb_skill_get(skill, node, "type", type, sizeof(type));
    if (run->ret->ended) {
        s->state = PB_SKILL_SKIPPED;
        snprintf(s->text, sizeof(s->text), "a step before it ended the playbook");
        return;
    }
    if (!is_wanted(run, node, s))
        return;
    if (strcmp(type, "sql") == 0) {
        run_sql(run, node, s);
    } else if (strcmp(type, "api") == 0 || strcmp(type, "config") == 0 || strcmp(type, "ui") == 0) {
        put_hint(run, node, type, s);
    } else {
        s->state = PB_SKILL_FAILED;
        snprintf(s->text, sizeof(s->text), "a step of an unknown type: %s", type);
        pb_text_clean(s->text);
    }
}

/* One of the tables in requires.any_tables must be here. */
static int check_tables(struct skill_run *run, struct pb_err *err)
{
    const struct pb_skill *skill = run->q->skill;
    uint32_t any = pb_json_get(&skill->doc, pb_skill_part(skill, "requires"), "any_tables");
    struct pb_skill_step names = {0};
    char name[2 * PB_SKILL_NAME], all[PB_SKILL_TEXT] = "";
    bool found = false;

    if (!pb_skill_first(skill, any))
        return 0;
    int r = run_statement(run, "SELECT name FROM probing.tables", &names);
    if (r < 0)
        r = pb_fail(err, r, "%s", names.text);
    for (uint32_t t = pb_skill_first(skill, any); r == 0 && t; t = skill->doc.nodes[t].next) {
        pb_json_text(&skill->doc, t, name, sizeof(name));
        const char *own = strncmp(name, "global.", 7) == 0 ? name + 7 : name;
        for (size_t i = 0; i < names.nrows; i++)
            found |= names.cells[i * names.ncolumns] && strcmp(names.cells[i * names.ncolumns], own) == 0;
        size_t n = strlen(all);
        snprintf(all + n, sizeof(all) - n, "%s%s", n ? ", " : "", name);
    }
    step_done(&names);
    return r < 0 || found
               ? r
               : pb_fail(err, -ENOENT, "the playbook needs one of these tables, and none is here: %s", all);
}

static int run_steps(struct skill_run *run)
{
    const struct pb_skill *skill = run->q->skill;
    struct pb_skill_result *ret = run->ret;

    ret->steps = calloc(STEPS_MAX, sizeof(*ret->steps));
    if (!ret->steps)
        return -ENOMEM;
    for (uint32_t n = pb_skill_first(skill, pb_skill_part(skill, "steps")); n && ret->nsteps < STEPS_MAX;
         n = skill->doc.nodes[n].next)
        run_step(run, n, &ret->steps[ret->nsteps++]);
    return 0;
}

/* --- rules and closing words --- */

static void judge_rule(struct skill_run *run, uint32_t node)
{
    const struct pb_skill *skill = run->q->skill;
    const struct pb_skill_step *of = NULL;
    struct pb_skill_remark rule = {0};
    char why[PB_SKILL_TEXT] = "";

    pb_skill_get(skill, node, "id", rule.rule, sizeof(rule.rule));
    pb_skill_get(skill, node, "severity", rule.severity, sizeof(rule.severity));
    _cleanup_free_ char *when = pb_skill_copy(skill, node, "when");
    _cleanup_free_ char *filled = when ? pb_skill_words(&run->values, NULL, NULL, when) : NULL;
    int r = filled ? pb_skill_when(filled, run->ret, &of, why, sizeof(why)) : 0;
    if (r == 0)
        return;
    _cleanup_free_ char *message = pb_skill_copy(skill, node, "message");
    _cleanup_free_ char *says = message ? pb_skill_words(&run->values, run->ret, of, message) : NULL;
    snprintf(rule.says, sizeof(rule.says), "%s", r < 0 ? why : says ? says : "");
    pb_text_clean(rule.rule);
    pb_text_clean(rule.severity);
    pb_text_clean(rule.says);
    if (r < 0)
        run->ret->unjudged[run->ret->nunjudged++] = rule;
    else
        run->ret->remarks[run->ret->nremarks++] = rule;
}

static int judge_rules(struct skill_run *run)
{
    const struct pb_skill *skill = run->q->skill;
    uint32_t rules = pb_json_get(&skill->doc, pb_skill_part(skill, "interpretation"), "rules");
    size_t n = 0;

    run->ret->remarks = calloc(RULES_MAX, sizeof(*run->ret->remarks));
    run->ret->unjudged = calloc(RULES_MAX, sizeof(*run->ret->unjudged));
    if (!run->ret->remarks || !run->ret->unjudged)
        return -ENOMEM;
    for (uint32_t k = pb_skill_first(skill, rules); k && n++ < RULES_MAX; k = skill->doc.nodes[k].next)
        judge_rule(run, k);
    return 0;
}

static int read_closing(struct skill_run *run)
{
    const struct pb_skill *skill = run->q->skill;
    _cleanup_free_ char *template =
        pb_skill_copy(skill, pb_json_get(&skill->doc, 1, "spec"), "summary_template");
    char text[PB_SKILL_TEXT];

    run->ret->summary = template ? pb_skill_words(&run->values, run->ret, NULL, template) : NULL;
    run->ret->next = calloc(NEXT_MAX, sizeof(*run->ret->next));
    if (!run->ret->summary || !run->ret->next)
        return -ENOMEM;
    for (uint32_t k = pb_skill_first(skill, pb_skill_part(skill, "next_steps"));
         k && run->ret->nnext < NEXT_MAX; k = skill->doc.nodes[k].next) {
        if (pb_json_text(&skill->doc, k, text, sizeof(text)) < 0)
            continue;
        pb_text_clean(text);
        if (!(run->ret->next[run->ret->nnext] = strdup(text)))
            return -ENOMEM;
        run->ret->nnext++;
    }
    return 0;
}

int pb_skill_run(const struct pb_ask *ask, const struct pb_skill_request *request,
                 struct pb_skill_result *ret, struct pb_err *err)
{
    struct skill_run run = {.ask = ask,
                            .q = request,
                            .ret = ret,
                            .until = pb_now_ns() + request->timeout_ms * PB_NS_PER_MS,
                            .bytes = 64 << 20};

    *ret = (struct pb_skill_result){0};
    int r = pb_skill_values_read(request, &run.values, err);
    if (r == 0)
        r = check_tables(&run, err);
    if (r == 0 && (run_steps(&run) < 0 || judge_rules(&run) < 0 || read_closing(&run) < 0))
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r < 0)
        pb_skill_result_done(ret);
    return r;
}
