/* diagnosis_print: see diagnosis_print.h. At most 80 columns: a longer field is cut, a sentence wrapped. */
#include "cli/print/diagnosis_print.h"

#include "base/json_write.h"
#include "cli/print/rows.h"
#include "diagnose/unchecked.h"
#include "print/glyph.h"
#include "print/outlet.h"

#include <stdio.h>
#include <string.h>

enum { WIDE = 80, FIELD_MAX = 30, LEAST_TEXT = 12 };

/* --- for people --- */

/* Begins at column `indent`; the lines after the first do too. */
static void put_wrapped_from(size_t indent, const char *text)
{
    size_t at = indent;

    while (*text) {
        size_t n = strcspn(text, " "), columns = pb_glyph_columns(text, n);
        if (at > indent && at + 1 + columns > WIDE) {
            printf("\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            putchar(' ');
            at++;
        }
        pb_put_line(stdout, text, n);
        at += columns;
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* lead: columns before the first line, as many spaces before the others. */
static void put_wrapped(const char *lead, const char *text)
{
    fputs(lead, stdout);
    put_wrapped_from(strlen(lead), text);
}

/* At most `room` columns, ".." where it is cut. Returns the columns written. */
static size_t put_cut(const char *text, size_t room)
{
    struct pb_glyph g;
    size_t n = strlen(text), all = pb_glyph_columns(text, n), at = 0;

    for (size_t i = 0; i < n; i += g.bytes) {
        pb_glyph_read(text + i, n - i, &g);
        if (all > room && at + g.columns + 2 > room) {
            fputs("..", stdout);
            return at + 2;
        }
        fputs(g.shown, stdout);
        at += g.columns;
    }
    return at;
}

/* How many fields there are up to the last that has a text. */
static size_t count_fields(const struct pb_diag_evidence *e)
{
    size_t n = PB_DIAG_FIELDS;

    while (n && !e->field[n - 1][0])
        n--;
    return n;
}

static void put_evidence(const struct pb_diag_finding *f)
{
    size_t widths[PB_DIAG_FIELDS] = {0};

    /* The last field of a line takes what is left, and widens no column of the others. */
    for (size_t i = 0; i < f->nevidence; i++)
        for (size_t k = 0; k + 1 < count_fields(&f->evidence[i]); k++) {
            const char *text = f->evidence[i].field[k];
            size_t columns = pb_glyph_columns(text, strlen(text));
            columns = columns < FIELD_MAX ? columns : FIELD_MAX;
            widths[k] = columns > widths[k] ? columns : widths[k];
        }
    for (size_t i = 0; i < f->nevidence; i++) {
        size_t at = 2, last = count_fields(&f->evidence[i]);
        fputs("  ", stdout);
        for (size_t k = 0; k < last; k++) {
            bool end = k + 1 == last;
            size_t room = end ? WIDE - at : widths[k];
            size_t wrote = at < WIDE ? put_cut(f->evidence[i].field[k], room) : 0;
            at += wrote;
            if (end || !widths[k])
                continue;
            size_t pad = (widths[k] > wrote ? widths[k] - wrote : 0) + 2;
            printf("%*s", (int)pad, "");
            at += pad;
        }
        putchar('\n');
    }
}

static void put_bold(const char *text)
{
    if (pb_color())
        fputs(pb_style(PB_BOLD), stdout);
    put_wrapped("", text);
    if (pb_color())
        fputs(pb_style(PB_PLAIN), stdout);
}

void pb_headline_print(const struct pb_headline *h)
{
    put_bold(h->text);
}

bool pb_headlines_print(const struct pb_headlines *h, const char *target)
{
    for (size_t i = 0; i < h->njobs; i++)
        put_bold(h->jobs[i]);
    if (h->njobs) {
        fputs("  evidence: probing -t ", stdout);
        pb_put_name(stdout, target);
        puts(" diagnose");
    }
    return h->njobs;
}

static void put_finding(const struct pb_diag_finding *f)
{
    put_bold(f->says);
    put_evidence(f);
    if (f->why[0])
        put_wrapped("", f->why);
    if (f->next[0]) {
        char text[400];
        snprintf(text, sizeof(text), "Next: %s", f->next);
        put_wrapped("", text);
    }
}

static void put_title(const struct pb_diag_answer *a, char *ret, size_t size)
{
    int ranks = 0;

    for (size_t i = 0; i < a->job->nprocesses; i++)
        ranks += a->job->processes[i].parent == PB_NOBODY;
    if (a->job->ranks)
        snprintf(ret, size, "%s, %d rank%s", a->job->name, ranks, ranks == 1 ? "" : "s");
    else
        snprintf(ret, size, "%s, process %d", a->job->name, (int)a->job->processes[0].pid);
}

/* What a job that nothing is wrong with does: "4 of 4 ranks answered, 3 of them moved". */
static void put_state(const struct pb_diag_answer *a, char *ret, size_t size)
{
    int moving = 0;

    for (size_t i = 0; i < a->job->nprocesses; i++) {
        const struct pb_diag_process *p = &a->job->processes[i];
        moving += p->parent == PB_NOBODY && p->n && a->job->threads[p->first].moved;
    }
    if (a->job->ranks)
        snprintf(ret, size, "%d of %d ranks answered, %d of them moved within a second", a->answered,
                 a->asked, moving);
    else
        snprintf(ret, size, "its main thread %s",
                 !a->answered ? "could not be read"
                 : moving     ? "moves"
                              : "waits, and nobody waits for it");
}

static void put_remarks(const struct pb_diag_answer *a)
{
    char text[300];

    for (size_t i = 0; i < a->findings.n && i < 3; i++)
        put_wrapped("  remark   ", a->findings.at[i].says);
    for (size_t i = 0; i < a->job->nprocesses; i++)
        if (a->job->processes[i].result < 0 && a->job->processes[i].parent == PB_NOBODY) {
            snprintf(text, sizeof(text), "process %d: %s", (int)a->job->processes[i].pid,
                     a->job->processes[i].why);
            put_wrapped("  unread   ", text);
        }
}

static void put_unchecked(const struct pb_diag_unchecked *u, const char *of)
{
    char text[200];

    snprintf(text, sizeof(text), "%s%s: %s", u->what, of, u->why);
    put_wrapped("  not      ", text);
    fputs("             ", stdout);
    pb_put_name(stdout, u->command);
    putchar('\n');
}

static void put_checked(const struct pb_diag_answer *a, const char *of)
{
    struct pb_diag_unchecked unchecked[PB_DIAG_UNCHECKED];

    size_t n = pb_diag_unchecked(a, unchecked);
    for (size_t i = 0; i < n; i++)
        put_unchecked(&unchecked[i], of);
}

static const char checked_from_outside[] =
    "  checked  waits, locks, collectives, stopped and ended processes";

/* A line a job: several jobs are shown, and those in which something is wrong in full. */
static void put_healthy_of_several(const struct pb_diagnosis *d)
{
    char title[200], state[120], text[400], of[160];
    const struct pb_diag_answer *first = NULL;

    for (size_t i = 0; i < d->n; i++) {
        const struct pb_diag_answer *a = &d->at[i];
        if (a->verdict)
            continue;
        if (!first)
            puts(i ? "\nNo problem found in:" : "No problem found in:");
        put_title(a, title, sizeof(title));
        put_state(a, state, sizeof(state));
        snprintf(text, sizeof(text), "%s: %s", title, state);
        put_wrapped("  ", text);
        put_remarks(a);
        first = first ? first : a;
    }
    if (!first)
        return;
    puts(checked_from_outside);
    snprintf(of, sizeof(of), " of %s%s", first->job->name, d->n > 1 ? ", say" : "");
    put_checked(first, of);
}

static void put_healthy(const struct pb_diag_answer *a)
{
    char state[120], text[200];

    put_state(a, state, sizeof(state));
    snprintf(text, sizeof(text), "No problem found: %s.", state);
    put_wrapped("", text);
    put_remarks(a);
    puts(checked_from_outside);
    if (a->probed)
        puts("           what grows, and slow ranks where steps are recorded");
    put_checked(a, "");
}

static void put_answer(const struct pb_diag_answer *a)
{
    put_finding(a->verdict);
    for (size_t k = 1; k < a->findings.n; k++)
        if (a->findings.at[k].second) {
            puts("");
            put_finding(&a->findings.at[k]);
        }
}

void pb_diagnosis_print(const struct pb_diagnosis *d)
{
    char title[200];

    if (!d->n)
        puts("No Python process that you may read is running here.");
    for (size_t i = 0; i < d->n; i++) {
        if (!d->at[i].verdict)
            continue;
        if (d->n > 1) {
            put_title(&d->at[i], title, sizeof(title));
            fputs(i ? "\n" : "", stdout);
            pb_put_name(stdout, title);
            puts("");
        }
        put_answer(&d->at[i]);
    }
    if (d->n == 1 && !d->at[0].verdict)
        put_healthy(&d->at[0]);
    else
        put_healthy_of_several(d);
}

/* --- the jobs, a line each --- */

static void put_command(const char *target, const char *command, const char *what)
{
    char text[160];

    snprintf(text, sizeof(text), "probing %s%s%s", target, target[0] ? " " : "", command);
    printf("  %-34s %s\n", text, what);
}

void pb_diagnosis_print_jobs(const struct pb_diagnosis *d)
{
    enum { TITLE = 30 };
    char title[200], target[32] = "-t PID";

    for (size_t i = 0; i < d->n; i++) {
        const struct pb_diag_answer *a = &d->at[i];
        put_title(a, title, sizeof(title));
        size_t wrote = put_cut(title, TITLE);
        printf("%*s", (int)(TITLE + 2 - wrote), "");
        if (a->verdict && pb_color())
            fputs(pb_style(PB_BOLD), stdout);
        put_wrapped_from(TITLE + 2, a->verdict               ? a->verdict->says
                                    : a->answered < a->asked ? "no problem found; a part could not be read"
                                                             : "no problem found");
        if (a->verdict && pb_color())
            fputs(pb_style(PB_PLAIN), stdout);
    }
    if (!d->n)
        puts("No Python process that you may read is running here.");
    else if (d->at[0].job->nprocesses)
        snprintf(target, sizeof(target), "-t %d", (int)d->at[0].job->processes[0].pid);
    putchar('\n');
    put_command(target, "diagnose", "the evidence, and what to do next");
    put_command(target, "backtrace", "what each thread does now");
    put_command("", "help", "all commands");
}

/* --- for programs --- */

static void put_text(struct pb_json_writer *w, const char *key, const char *text)
{
    pb_json_put_text(w, key, text[0] ? text : NULL);
}

static void put_count(struct pb_json_writer *w, const char *key, int value, bool known)
{
    if (known)
        pb_json_put_number(w, key, "%d", value);
    else
        pb_json_put_null(w, key);
}

static void put_place(struct pb_json_writer *w, const struct pb_diag_place *p)
{
    if (!p->line) {
        pb_json_put_null(w, "place");
        return;
    }
    pb_json_open(w, "place", '{');
    pb_json_put_text(w, "file", p->file);
    pb_json_put_number(w, "line", "%d", p->line);
    put_text(w, "function", p->function);
    put_text(w, "source", p->source);
    pb_json_close(w);
}

/* A process without rank is a job of one: then it is rank 0. */
static void put_json_finding(struct pb_json_writer *w, const struct pb_diag_job *job,
                             const struct pb_diag_finding *f)
{
    static const char *const sures[] = {"remark", "likely", "certain"};
    static const char *const names[] = {"label", "who", "place", "text"};

    pb_json_line(w, 4);
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "kind", f->kind);
    put_text(w, "cause", f->cause);
    put_count(w, "rank", job->ranks ? f->rank : 0, f->rank >= 0 || !job->ranks);
    put_text(w, "ranks", f->ranks);
    put_count(w, "pid", f->pid, f->pid > 0);
    pb_json_put_text(w, "sure", sures[f->sure]);
    pb_json_put_bool(w, "root", f->root);
    if (f->since >= 0)
        pb_json_put_number(w, "since_s", "%.3f", f->since);
    else
        pb_json_put_null(w, "since_s");
    put_text(w, "thread", f->thread);
    put_place(w, &f->place);
    pb_json_put_text(w, "says", f->says);
    pb_json_open(w, "evidence", '[');
    for (size_t i = 0; i < f->nevidence; i++) {
        pb_json_open(w, NULL, '{');
        for (size_t k = 0; k < PB_DIAG_FIELDS; k++)
            pb_json_put_text(w, names[k], f->evidence[i].field[k]);
        pb_json_close(w);
    }
    pb_json_close(w);
    put_text(w, "why", f->why);
    put_text(w, "next", f->next);
    pb_json_close(w);
}

static void put_json_ranks(struct pb_json_writer *w, const struct pb_diag_job *job)
{
    pb_json_open(w, "ranks", '[');
    for (size_t i = 0; i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        if (p->parent != PB_NOBODY)
            continue;
        pb_json_open(w, NULL, '{');
        put_count(w, "rank", job->ranks ? p->rank : 0, p->rank >= 0 || !job->ranks);
        put_count(w, "pid", p->pid, p->pid > 0);
        pb_json_put_format(w, "state", "%c", p->state);
        put_text(w, "node", p->node);
        put_text(w, "error", p->result < 0 ? p->why : "");
        pb_json_close(w);
    }
    pb_json_close(w);
}

static void put_json_job(struct pb_json_writer *w, const struct pb_diag_answer *a)
{
    static const char *const checked[] = {"waits", "locks", "collectives", "stopped", "ended"};
    struct pb_diag_unchecked unchecked[PB_DIAG_UNCHECKED];

    pb_json_line(w, 2);
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "job", a->job->name);
    pb_json_put_text(w, "verdict", a->verdict ? a->verdict->says : NULL);
    pb_json_put_number(w, "exit", "%d", a->verdict ? 10 : a->answered < a->asked ? 3 : 0);
    put_json_ranks(w, a->job);
    pb_json_open(w, "findings", '[');
    for (size_t i = 0; i < a->findings.n; i++)
        put_json_finding(w, a->job, &a->findings.at[i]);
    pb_json_close(w);
    pb_json_open(w, "checked", '[');
    for (size_t i = 0; i < sizeof(checked) / sizeof(checked[0]); i++)
        pb_json_put_text(w, NULL, checked[i]);
    pb_json_close(w);
    pb_json_open(w, "not_checked", '[');
    size_t n = pb_diag_unchecked(a, unchecked);
    for (size_t i = 0; i < n; i++) {
        pb_json_open(w, NULL, '{');
        pb_json_put_text(w, "what", unchecked[i].what);
        pb_json_put_text(w, "why", unchecked[i].why);
        pb_json_put_text(w, "command", unchecked[i].command);
        pb_json_close(w);
    }
    pb_json_close(w);
    pb_json_close(w);
}

void pb_diagnosis_write_job(FILE *to, const struct pb_diag_answer *a)
{
    struct pb_json_writer w = {.out = to};

    put_json_job(&w, a);
}

void pb_diagnosis_print_json(const struct pb_diagnosis *d)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '{');
    pb_json_open(&w, "jobs", '[');
    for (size_t i = 0; i < d->n; i++)
        put_json_job(&w, &d->at[i]);
    pb_json_close(&w);
    pb_json_put_number(&w, "seconds", "%.3f", d->seconds);
    pb_json_close(&w);
    putchar('\n');
}
