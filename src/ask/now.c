/* now: see now.h. */
#include "ask/now.h"

#include "ask/ask.h"
#include "ask/sources.h"
#include "ask/stacks.h"
#include "base/cleanup.h"
#include "base/procfs.h"
#include "base/text.h"
#include "base/time.h"
#include "table/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Listing all processes of the machine costs more than reading some stacks: it is done every few seconds. */
#define LIST_NS   (3 * PB_NS_PER_S)
#define LIMIT_MS  2000 /* for one process */
#define ASKED_MAX 5    /* looks for the number of a worker, which may be running */
#define WORKER_MS 1000 /* for that */
enum { SEGMENTS = 4 };

/* What is kept of a process between two calls. */
struct known {
    pid_t pid;
    uint64_t start_time;
    unsigned long slices; /* of its main thread, when it was seen last */
    uint64_t since;       /* the first look since which that thread has not run; 0: none */
    bool opened;          /* its tables were searched for */
    int arena;            /* -1: none */
    struct pb_reader *reader;
    bool seen;       /* in the latest list */
    bool is_worker;  /* of a data loader */
    unsigned asked;  /* how often: which worker it is */
    char worker[16]; /* its number in its data loader; "": not a worker */
};

struct pb_now {
    struct pb_running_list list;
    uint64_t listed;
    struct known *known;
    size_t nknown;
    struct pb_now_line *lines;
};

struct pb_now *pb_now_new(void)
{
    return calloc(1, sizeof(struct pb_now));
}

static void close_tables(struct known *k)
{
    pb_reader_close(k->reader);
    if (k->arena >= 0)
        close(k->arena);
    k->reader = NULL;
    k->arena = -1;
    k->opened = false;
}

void pb_now_free(struct pb_now *now)
{
    if (!now)
        return;
    for (size_t i = 0; i < now->nknown; i++)
        close_tables(&now->known[i]);
    pb_running_done(&now->list);
    free(now->known);
    free(now->lines);
    free(now);
}

/* --- which processes --- */

static struct known *find_known(struct pb_now *now, const struct pb_running *p)
{
    for (size_t i = 0; i < now->nknown; i++)
        if (now->known[i].pid == p->pid && now->known[i].start_time == p->start_time)
            return &now->known[i];
    return NULL;
}

static int add_known(struct pb_now *now, const struct pb_running *p)
{
    struct known *more = reallocarray(now->known, now->nknown + 1, sizeof(*more));

    if (!more)
        return -ENOMEM;
    now->known = more;
    more[now->nknown++] =
        (struct known){.pid = p->pid, .start_time = p->start_time, .arena = -1, .seen = true};
    return 0;
}

static void forget_ended(struct pb_now *now)
{
    size_t n = 0;

    for (size_t i = 0; i < now->nknown; i++)
        if (now->known[i].seen)
            now->known[n++] = now->known[i];
        else
            close_tables(&now->known[i]);
    now->nknown = n;
}

static int read_list(struct pb_now *now, const struct pb_ask *ask, struct pb_err *err)
{
    struct pb_running_list list;
    uint64_t time = pb_now_ns();

    if (now->listed && time - now->listed < LIST_NS)
        return 0;
    int r = pb_running_read(ask, &list, err);
    if (r < 0)
        return r;
    pb_running_done(&now->list);
    now->list = list;
    now->listed = time;
    struct pb_now_line *lines = reallocarray(now->lines, list.n + 1, sizeof(*lines));
    if (!lines)
        return pb_fail(err, -ENOMEM, "out of memory");
    now->lines = lines;
    for (size_t i = 0; i < now->nknown; i++)
        now->known[i].seen = false;
    for (size_t i = 0; r == 0 && i < list.n; i++) {
        struct known *k = find_known(now, &list.at[i]);
        if (k)
            k->seen = true;
        else
            r = add_known(now, &list.at[i]);
        if (k && k->opened && !list.at[i].probed)
            close_tables(k);
    }
    forget_ended(now);
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}

static bool is_wanted(const struct pb_targets *targets, pid_t pid)
{
    for (size_t i = 0; i < targets->n; i++)
        if (targets->at[i].pid == pid && !targets->at[i].dead)
            return true;
    return targets->n == 0;
}

/* --- steps --- */

/* Asks the agent for its tables, once. Without an answer no step is shown. */
static void open_tables(struct known *k, const struct pb_ask *ask)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    struct pb_target target = {.pid = k->pid};
    struct pb_err ignored = {0};

    k->opened = true;
    if (pb_sources_open(ask, &(struct pb_targets){.at = &target, .n = 1}, &sources, &ignored) < 0)
        return;
    k->arena = pb_take_fd(sources.at[0].live.arena_fd);
    if (k->arena >= 0 && pb_reader_open(k->arena, &k->reader, NULL) < 0)
        k->reader = NULL;
}

static int64_t last_step_of(struct pb_reader *reader, const struct pb_segment_info *segment, unsigned column)
{
    uint64_t wanted[4] = {0};
    struct pb_view view = {.wanted = wanted};
    int64_t step = -1;

    wanted[column / 64] = UINT64_C(1) << column % 64;
    int r = pb_view_load(reader, segment, &view);
    for (uint32_t i = 0; r == 0 && i < view.nrows; i++)
        if (!pb_view_is_null(&view, column, i))
            step = ((const int64_t *)view.columns[column].cells)[i];
    pb_view_done(&view);
    return step;
}

static int64_t last_step(struct pb_reader *reader)
{
    struct pb_segment_info *segments = NULL;
    struct pb_table_info info;
    unsigned column = 0;
    int64_t step = -1;

    int table = pb_reader_refresh(reader) < 0 ? -1 : pb_reader_find(reader, "python.torch_step");
    if (table < 0 || pb_reader_table(reader, (unsigned)table, &info) < 0)
        return -1;
    while (column < info.ncolumns && strcmp(info.columns[column].name, "step") != 0)
        column++;
    if (column == info.ncolumns || column >= 256 || info.columns[column].type != PB_I64)
        return -1;
    int n = pb_reader_segments(reader, (unsigned)table, &segments);
    for (int i = 0; i < n && i < SEGMENTS && step < 0; i++)
        step = last_step_of(reader, &segments[i], column);
    free(segments);
    return step;
}

/* --- where it stands --- */

static const struct pb_shown_frame *find_frame(const struct pb_shown_thread *t, const char *file,
                                               const char *function)
{
    for (size_t i = 0; i < t->nframes; i++)
        if (pb_text_ends_with(t->frames[i].code->file, file) &&
            strcmp(t->frames[i].code->name, function) == 0)
            return &t->frames[i];
    return NULL;
}

/* What a worker of a data loader runs. */
static const struct pb_shown_frame *find_worker(const struct pb_shown_thread *t)
{
    return find_frame(t, "torch/utils/data/_utils/worker.py", "_worker_loop");
}

/* Asks all whose number is not known, a variable of the worker's own loop, at once. */
static void ask_workers(struct pb_now *now, const struct pb_ask *ask)
{
    const struct pb_stacks_options options = {.locals = true, .within_ms = WORKER_MS};
    struct pb_ask limited = *ask;
    struct pb_targets asked = {.at = calloc(now->nknown + 1, sizeof(*asked.at))};
    struct pb_stacks_answer *answers = calloc(now->nknown + 1, sizeof(*answers));

    limited.limit_ms = WORKER_MS;
    for (size_t i = 0; asked.at && i < now->nknown; i++) {
        struct known *k = &now->known[i];
        if (k->is_worker && !k->worker[0] && k->asked++ < ASKED_MAX)
            asked.at[asked.n++].pid = k->pid;
    }
    if (answers && asked.n && pb_stacks_ask(&limited, &asked, &options, PB_WAITS_NONE, answers) == 0)
        for (size_t i = 0; i < asked.n; i++)
            for (size_t t = 0; answers[i].result >= 0 && t < answers[i].stacks->n; t++) {
                const struct pb_shown_frame *frame = find_worker(&answers[i].stacks->threads[t]);
                const char *number =
                    frame && frame->locals ? pb_py_locals_get(frame->locals, "worker_id") : NULL;
                for (size_t k = 0; number && k < now->nknown; k++)
                    if (now->known[k].pid == asked.at[i].pid)
                        snprintf(now->known[k].worker, sizeof(now->known[k].worker), "%s", number);
            }
    if (answers)
        pb_stacks_answers_done(answers, asked.n);
    free(answers);
    free(asked.at);
}

/* When a worker last gave a batch: since then the thread that sends batches waits for one. The worker itself
 * looks every five seconds whether its parent is alive. */
static double since_batch(const struct pb_stacks *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (find_frame(&s->threads[i], "multiprocessing/queues.py", "_feed"))
            return pb_wait_seconds(s, &s->threads[i]);
    return -1;
}

/* The parent by stat: other files of /proc may wait for a lock of the process. */
static void name_worker(struct pb_now_line *line, const struct known *k)
{
    char text[512];
    int parent = 0;
    const char *end = pb_proc_read(k->pid, "stat", text, sizeof(text)) > 0 ? strrchr(text, ')') : NULL;

    if (line->process.rank[0])
        snprintf(line->worker, sizeof(line->worker), "worker %s of rank %s", k->worker, line->process.rank);
    else if (end && sscanf(end, ") %*c %d", &parent) == 1)
        snprintf(line->worker, sizeof(line->worker), "worker %s of %d", k->worker, parent);
}

/* How long the thread has slept; negative: it runs, or is seen for the first time. Only what the kernel
 * counted is evidence: a thread that is seen at one line at each look may have been through its whole loop
 * meanwhile. */
static double seconds_asleep(const struct pb_stacks *s, const struct pb_shown_thread *t,
                             const struct pb_wait *wait, struct known *k)
{
    unsigned long slices;
    uint64_t now = pb_now_ns();

    if (wait && wait->seconds >= 0)
        return wait->seconds;
    if (!s->source.pid || !pb_wait_slices(s->pid, t->native.tid, &slices)) {
        k->since = 0;
        return -1;
    }
    bool slept = k->since && slices == k->slices && t->native.state != 'R';
    if (!slept)
        k->since = now;
    k->slices = slices;
    return slept ? (double)(now - k->since) / 1e9 : -1;
}

static void fill_line(struct pb_now_line *line, const struct pb_stacks *s, struct known *k)
{
    const struct pb_shown_thread *t = NULL;
    const struct pb_wait *wait = NULL;
    char buf[64];

    for (size_t i = 0; i < s->n; i++)
        if (!t || s->threads[i].native.tid == s->pid) {
            t = &s->threads[i];
            wait = i < s->waits.n ? &s->waits.at[i] : NULL;
        }
    snprintf(line->verdict, sizeof(line->verdict), "%s", s->verdict_is_wait ? "" : s->verdict);
    snprintf(line->waits, sizeof(line->waits), "%s", s->verdict_is_wait ? s->verdict : "");
    if (!t)
        return;
    const struct pb_shown_frame *frame = pb_stacks_own_frame(t), *worker = find_worker(t);
    if (!frame)
        frame = worker ? worker : t->nframes ? &t->frames[0] : NULL;
    snprintf(line->state, sizeof(line->state), "%s", pb_stacks_state(t, buf, sizeof(buf)));
    if (t->raised[0]) {
        snprintf(line->function, sizeof(line->function), "%s", t->raised_in);
        snprintf(line->file, sizeof(line->file), "%s", t->raised_file);
        line->line = t->raised_line;
    } else if (frame) {
        snprintf(line->function, sizeof(line->function), "%s", frame->code->qualname);
        snprintf(line->file, sizeof(line->file), "%s", frame->code->file);
        line->line = frame->line;
    }
    line->seconds = t->held[0] ? t->held_seconds : seconds_asleep(s, t, wait, k);
    k->is_worker = worker != NULL;
    double seconds = worker ? since_batch(s) : -1;
    if (seconds >= 0)
        line->seconds = seconds;
}

int pb_now_look(struct pb_now *now, const struct pb_ask *ask, const struct pb_targets *targets,
                struct pb_now_lines *ret, struct pb_err *err)
{
    const struct pb_stacks_options options = {.native_if_alone = false, .within_ms = LIMIT_MS};
    struct pb_targets asked = {0};
    struct pb_ask limited = *ask;
    size_t n = 0;

    limited.limit_ms = LIMIT_MS;
    int r = read_list(now, &limited, err);
    if (r < 0)
        return r;
    asked.at = calloc(now->list.n + 1, sizeof(*asked.at));
    struct pb_stacks_answer *answers = calloc(now->list.n + 1, sizeof(*answers));
    r = asked.at && answers ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < now->list.n; i++)
        if (is_wanted(targets, now->list.at[i].pid)) {
            now->lines[asked.n] = (struct pb_now_line){.process = now->list.at[i], .step = -1, .seconds = -1};
            asked.at[asked.n++].pid = now->list.at[i].pid;
        }
    if (r == 0)
        r = pb_stacks_ask(&limited, &asked, &options, PB_WAITS_MAIN, answers);
    for (size_t i = 0; r == 0 && i < asked.n; i++) {
        struct pb_now_line *line = &now->lines[i];
        struct known *k = find_known(now, &line->process);
        if (answers[i].result < 0 || !k)
            continue;
        fill_line(line, answers[i].stacks, k);
        if (line->process.probed && !k->opened)
            open_tables(k, &limited);
        line->step = k->reader ? last_step(k->reader) : -1;
        now->lines[n++] = *line;
    }
    ask_workers(now, &limited);
    for (size_t i = 0; i < n; i++) {
        const struct known *k = find_known(now, &now->lines[i].process);
        if (k && k->is_worker && k->worker[0])
            name_worker(&now->lines[i], k);
    }
    if (answers)
        pb_stacks_answers_done(answers, asked.n);
    free(answers);
    free(asked.at);
    *ret = (struct pb_now_lines){now->lines, n};
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}
