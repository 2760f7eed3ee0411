/* backtrace: the stacks of all threads of a process, read from outside: no injection, no GIL, nothing
 * loaded. */
#include "ask/stackset.h"
#include "ask/task.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/print/diagnosis_print.h"
#include "cli/print/rows.h"
#include "cli/print/stacks_print.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"
#include "print/outlet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct pb_option options[] = {
    {0, "locals", NULL, "arguments and local variables of each frame, shortened; secrets left out"},
    {0, "native", NULL,
     "native frames too, where they were called; a process without Python shows them anyhow"},
    {0, "merge", NULL, "equal stacks once, the rarest first; with --all over all processes of a job"},
    {0, "no-lines", NULL, "with --merge: stacks are equal also where their line numbers are not"},
    {0, "tasks", NULL, "the asyncio tasks of all threads as a tree: a task awaits those below it"},
    {'w', "watch", NULL, "repeat until Ctrl-C"},
    {0, "count", PB_COUNT("N", .least = 1, .usual = 1),
     "repeat N times; after the first only threads that changed, are new or have ended"},
    {0, "interval", PB_TIME(.usual = 1000), "time between two rounds (default 1s)"},
    {0, "no-stop", NULL,
     "never stop a thread, not even for microseconds; a running thread is shown without a stack"},
    {0, "source", PB_TEXT("FILE"), "instead of the stacks, the text of a source file that a frame names"},
    {0, "force", NULL, "take the nearest known layout for an unknown version of CPython"},
    {0},
};

struct backtrace_plan {
    struct pb_stacks_options take;
    bool json, merge;
    const char *source; /* NULL: the stacks */
    uint64_t count;     /* 0: no limit */
    unsigned interval_ms;
};

static int make_plan(const struct pb_call *call, struct backtrace_plan *ret, struct pb_err *err)
{
    struct backtrace_plan p = {.count = (uint64_t)pb_call_number(call, "count"),
                               .interval_ms = pb_call_ms(call, "interval")};

    p.take.locals = pb_call_option(call, "locals");
    p.take.no_stop = pb_call_option(call, "no-stop");
    p.take.native = pb_call_option(call, "native");
    p.take.native_if_alone = true;
    p.take.force = pb_call_option(call, "force");
    p.json = call->format == PB_FORMAT_JSON;
    p.merge = pb_call_option(call, "merge");
    p.source = pb_call_option(call, "source");
    if (pb_call_option(call, "watch") && !pb_call_option(call, "count"))
        p.count = 0;
    else if (!p.count)
        p.count = 1; /* `core` has no such option */
    *ret = p;
    return 0;
}

/* The processes of one call. A process that cannot be read or has ended is reported once; the others go
 * on. */
struct set {
    struct pb_ask ask;
    struct pb_targets left; /* processes that are still read */
    struct pb_stacks_answer *answers;
    const struct pb_stacks **shown;
    size_t *index; /* for each process shown: its index in the call's targets */
    struct pb_sources **sources;
    bool *gone;
    size_t n;
    struct pb_stacks_failure *failures; /* of the last time that they were read */
    size_t nfailures;
    bool failed;
};

static void print_failure(const struct pb_call *call, struct set *set, size_t i, int r,
                          const struct pb_err *err)
{
    fflush(stdout);
    fprintf(stderr, "probing: %s: ", call->command->name);
    pb_put_name(stderr, set->n > 1 ? call->targets.at[i].label : "");
    fputs(set->n > 1 ? ": " : "", stderr);
    pb_put_sentence(stderr, pb_err_text(err, r));
    set->gone[i] = true;
    set->failed = true;
    set->failures[set->nfailures++] = (struct pb_stacks_failure){
        .pid = call->targets.at[i].pid, .label = call->targets.at[i].label, .why = pb_err_text(err, r)};
}

static void set_done(struct set *set)
{
    for (size_t i = 0; set->sources && i < set->n; i++)
        pb_sources_free(set->sources[i]);
    if (set->answers)
        pb_stacks_answers_done(set->answers, set->n);
    free(set->left.at);
    free(set->answers);
    free(set->shown);
    free(set->index);
    free(set->sources);
    free(set->gone);
    free(set->failures);
}

static int set_init(const struct pb_call *call, struct set *set, struct pb_err *err)
{
    set->ask = call->ask;
    set->ask.limit_ms = call->targets.at[0].core ? 0 : pb_call_limit(call);
    set->n = call->targets.n;
    set->left.at = calloc(set->n, sizeof(*set->left.at));
    set->answers = calloc(set->n, sizeof(*set->answers));
    set->shown = calloc(set->n, sizeof(struct pb_stacks *));
    set->index = calloc(set->n, sizeof(*set->index));
    set->sources = calloc(set->n, sizeof(struct pb_sources *));
    set->gone = calloc(set->n, sizeof(*set->gone));
    set->failures = calloc(set->n, sizeof(*set->failures));
    return set->left.at && set->answers && set->shown && set->index && set->sources && set->gone &&
                   set->failures
               ? 0
               : pb_fail(err, -ENOMEM, "out of memory");
}

/* Reads all processes at once, so that their stacks are of nearly the same moment. Returns how many can be
 * shown. */
static int set_take(const struct pb_call *call, const struct backtrace_plan *p, struct set *set,
                    struct pb_err *err)
{
    int n = 0;

    pb_stacks_answers_done(set->answers, set->n);
    set->left.n = set->nfailures = 0;
    for (size_t i = 0; i < set->n; i++)
        if (!set->gone[i])
            set->left.at[set->left.n++] = call->targets.at[i];
    if (pb_stacks_ask(&set->ask, &set->left, &p->take, p->json ? PB_WAITS_ALL : PB_WAITS_MAIN, set->answers) <
        0)
        return pb_fail(err, -ENOMEM, "out of memory");
    const struct pb_stacks_answer *a = set->answers;
    for (size_t i = 0; i < set->n; i++) {
        if (set->gone[i])
            continue;
        if (a->result < 0) {
            print_failure(call, set, i, a->result, &a->err);
        } else {
            set->index[n] = i;
            set->shown[n++] = a->stacks;
        }
        a++;
    }
    return n;
}

static void add_thread(struct pb_rows *rows, const struct pb_stacks *s, const struct pb_shown_thread *t,
                       size_t depth)
{
    char buf[64];

    pb_rows_text(rows, s->label);
    pb_rows_number(rows, "%d", (int)t->native.tid);
    pb_rows_text(rows, t->name[0] ? t->name : t->native.name);
    pb_rows_text(rows, pb_stacks_state(t, buf, sizeof(buf)));
    pb_rows_number(rows, "%d", t->gil);
    pb_rows_number(rows, "%zu", depth);
}

static void add_line(struct pb_rows *rows, long line)
{
    if (line > 0)
        pb_rows_number(rows, "%ld", line);
    else
        pb_rows_text(rows, NULL);
}

/* A thread without frames has one row too. */
static void add_frames(struct pb_rows *rows, const struct pb_stacks *s, const struct pb_shown_thread *t,
                       bool natives)
{
    size_t n = t->nmerged ? t->nmerged : t->nframes;

    for (size_t d = 0; d < (n ? n : 1); d++) {
        size_t index = t->nmerged ? t->merged[d].index : d;
        const struct pb_native_frame *native = t->nmerged && !t->merged[d].python ? &t->natives[index] : NULL;
        const struct pb_shown_frame *f = n && !native ? &t->frames[index] : NULL;
        add_thread(rows, s, t, d);
        pb_rows_text(rows, f ? f->code->qualname : native ? native->function : NULL);
        pb_rows_text(rows, f ? f->code->file : native ? native->file : NULL);
        add_line(rows, f ? f->line : native ? (long)native->line : 0);
        if (natives) {
            pb_rows_text(rows, f ? "python" : native ? "native" : NULL);
            pb_rows_text(rows, native ? native->module : NULL);
        }
    }
}

static void print_rows(struct set *set, size_t n, enum pb_format format, struct pb_err *err)
{
    /* The last two columns exist only with native frames: existing scripts keep their columns. */
    static const char *const columns[] = {"target",   "tid",  "thread", "state", "gil",   "depth",
                                          "function", "file", "line",   "kind",  "module"};
    size_t ncolumns = sizeof(columns) / sizeof(columns[0]);
    struct pb_rows rows;

    bool native = false;
    for (size_t i = 0; i < n; i++)
        native |= set->shown[i]->about.native;
    pb_rows_init(&rows, columns, native ? ncolumns : ncolumns - 2);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < set->shown[i]->n; k++)
            add_frames(&rows, set->shown[i], &set->shown[i]->threads[k], native);
    pb_rows_print(&rows, format, NULL, err);
    pb_rows_done(&rows);
}

static void print_texts(struct set *set, size_t n, struct pb_history *histories, bool tasks)
{
    for (size_t k = 0; k < n; k++) {
        size_t i = set->index[k];
        if (!set->sources[i])
            set->sources[i] = pb_sources_new(set->shown[k]);
        struct pb_history *since = histories ? &histories[i] : NULL;
        if (since && pb_history_add(since, set->shown[k]) < 0)
            since = NULL;
        if (k)
            putchar('\n');
        if (tasks)
            pb_stacks_print_tasks(set->shown[k]);
        else
            pb_stacks_print(set->shown[k], set->sources[i], since);
    }
}

static int print_merged(const struct pb_call *call, const struct backtrace_plan *p, const struct set *set,
                        size_t n, struct pb_err *err)
{
    struct pb_stackset *merged = NULL;

    int r = pb_stackset_new(&merged);
    if (r == 0 && pb_call_option(call, "no-lines"))
        pb_stackset_drop_lines(merged);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = pb_stackset_add(merged, set->shown[i], set->shown[i]->rank);
    if (r == 0 && p->json)
        pb_stacks_print_merged_json(merged, set->failures, set->nfailures);
    else if (r == 0)
        pb_stacks_print_merged(merged, set->shown, n);
    pb_stackset_free(merged);
    return r < 0 ? pb_fail(err, r, "the stacks cannot be merged: %s", strerror(-r)) : 0;
}

/* Of the first process that has it. */
static int print_source(const struct set *set, size_t n, const char *file, struct pb_err *err)
{
    struct pb_room *room = NULL;
    const char *text;
    size_t length;
    int r = -ENOENT;

    for (size_t i = 0; r == -ENOENT && i < n; i++)
        r = pb_sources_text(&set->ask, set->shown[i], file, &room, &text, &length, err);
    if (r < 0)
        return r;
    fwrite(text, 1, length, stdout);
    pb_room_free(room);
    return 0;
}

/* Whether a main thread has stood still for so long that diagnose would name it. */
static bool stands_still(const struct pb_stacks *s)
{
    if (!s->source.pid)
        return false;
    for (size_t i = 0; i < s->n && i < s->waits.n; i++)
        if (s->threads[i].native.tid == s->pid && s->waits.at[i].seconds >= PB_DIAG_PATIENCE_S &&
            (s->verdict_is_wait || s->rank >= 0))
            return true;
    return s->verdict[0] && !s->verdict_is_wait;
}

/* Whose fault it is says diagnose, not the stacks: what waits is not what is wrong. */
static void print_headline(const struct pb_call *call, const struct set *set, size_t n)
{
    struct pb_headlines headlines;
    struct pb_err ignored = {0};
    bool any = false;

    for (size_t i = 0; i < n; i++)
        any |= stands_still(set->shown[i]);
    if (!any || !call->target ||
        pb_headlines_ask(&call->ask, &call->targets, false, &headlines, &ignored) < 0)
        return;
    if (pb_headlines_print(&headlines, call->target))
        putchar('\n');
    pb_headlines_done(&headlines);
}

static int print_once(const struct pb_call *call, const struct backtrace_plan *p, struct set *set, size_t n,
                      struct pb_history *histories, struct pb_err *err)
{
    if (n == 0)
        return 0;
    if (p->source)
        return print_source(set, n, p->source, err);
    if (call->format == PB_FORMAT_TABLE && p->count == 1)
        print_headline(call, set, n);
    if (p->merge && (p->json || call->format == PB_FORMAT_TABLE))
        return print_merged(call, p, set, n, err);
    if (p->json)
        pb_stacks_print_json(stdout, set->shown, n, set->failures, set->nfailures);
    else if (call->format == PB_FORMAT_CSV || call->format == PB_FORMAT_TSV)
        print_rows(set, n, call->format, err);
    else
        print_texts(set, n, histories, pb_call_option(call, "tasks"));
    return 0;
}

static int print_repeatedly(const struct pb_call *call, const struct backtrace_plan *p, struct set *set,
                            struct pb_history *histories, struct pb_err *err)
{
    int r = 0;

    for (uint64_t i = 0; r == 0 && (p->count == 0 || i < p->count); i++) {
        if (i) {
            fflush(stdout);
            pb_sleep_ns(p->interval_ms * PB_NS_PER_MS);
            putchar('\n');
        }
        int n = set_take(call, p, set, err);
        if (n <= 0)
            return n;
        r = print_once(call, p, set, (size_t)n, histories, err);
    }
    return r;
}

int pb_backtrace(const struct pb_call *call, struct pb_err *err)
{
    struct set set = {0};
    struct backtrace_plan p;

    int r = make_plan(call, &p, err);
    if (r < 0)
        return r;
    struct pb_history *histories = p.count != 1 ? calloc(call->targets.n, sizeof(*histories)) : NULL;
    /* Output is buffered whole: a slow terminal must not delay the reading of the next thread. */
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    r = set_init(call, &set, err);
    if (r == 0)
        r = print_repeatedly(call, &p, &set, histories, err);
    for (size_t i = 0; histories && i < set.n; i++)
        pb_history_done(&histories[i]);
    free(histories);
    set_done(&set);
    return r < 0 ? r : set.failed ? PB_FAILED : 0;
}

static const struct pb_printed_parts printed = {"stacks.txt", "stacks.json", " locals merge ",
                                                .by_process = true};

const struct pb_command pb_cmd_backtrace = {
    .name = "backtrace",
    .alias = "dump",
    .summary = "what every thread is doing now: Python stacks, read from outside",
    .synopsis = "",
    .text = "Works on any process: one that hangs, is stopped (SIGSTOP), holds the GIL for ever, "
            "or runs in a container. Nothing is loaded into it. The thread that holds the GIL "
            "comes first, then running threads, then waiting ones; the innermost frame is at the "
            "top. If the cause of a wait can be known, a line on top names it. After five seconds "
            "of waiting, another line says what is wrong, in the words of `diagnose`.\n\n"
            "A sleeping thread is read as it sleeps. A running one is stopped for some ten "
            "microseconds, since a stack read from a running thread may never have existed; "
            "--no-stop forbids that. CPython 3.4 to 3.15.\n\n"
            "--native shows the frames of C and C++ where they were called: function [module] "
            "(file:line). A process without Python shows them by default.",
    .example = "probing -t 4711 backtrace\nprobing -t 4711 backtrace --locals\n"
               "  probing -t train.py --all backtrace --merge",
    .options = options,
    .printed = &printed,
    .flags = PB_CMD_INCIDENT | PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TOGETHER |
             PB_CMD_TIMEOUT | PB_CMD_LABELS,
    .run = pb_backtrace,
    .run_over = pb_cluster_backtrace,
};
