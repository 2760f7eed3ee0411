/* sources: see sources.h. */
#include "ask/sources.h"

#include "ask/archived.h"
#include "ask/memory.h"
#include "ask/parts.h"
#include "ask/process_settings.h"
#include "ask/registered.h"
#include "ask/stacks.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "engine/shared/known.h"
#include "remote/procinfo.h"
#include "remote/runs.h"
#include "table/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIVE_LIMIT_MS = 10000 }; /* an agent has five seconds to say hello (inject/session.c) */

static void release_recordings(struct pb_sql_source *s)
{
    for (unsigned k = 0; k < s->live.nmore; k++) {
        if (s->live.more[k] >= 0)
            close(s->live.more[k]);
        free((struct pb_archive_run *)s->more[k]);
    }
    s->live.nmore = 0;
}

static void release_source(struct pb_sql_source *s)
{
    if (s->live.arena_fd >= 0)
        close(s->live.arena_fd);
    release_recordings(s);
    free((struct pb_archive_run *)s->archived);
    free((char *)s->live.broken);
}

void pb_query_sources_done(struct pb_query_sources *s)
{
    for (unsigned i = 0; i < s->n; i++)
        release_source(&s->at[i]);
    if (s->archive)
        close(s->hold);
    free(s->archive);
    free(s->at);
    *s = (struct pb_query_sources){0};
}

static void add_setting(void *arg, const struct pb_shown_setting *s)
{
    const char *const values[] = {s->name, s->value, s->fallback, s->unit, s->origin, s->text};
    struct pb_row row;

    if (pb_row_begin(arg, &row) < 0)
        return;
    for (unsigned k = 0; k < sizeof(values) / sizeof(values[0]); k++)
        pb_set_string(&row, k, values[k], values[k] ? strlen(values[k]) : 0);
    pb_row_commit(&row);
}

/* Rows of probing.config. */
static int add_config(const struct pb_live_source *source, struct pb_table *to, struct pb_err *err)
{
    const struct pb_target target = {.pid = source->pid,
                                     .dead = source->dead,
                                     .start_time = source->start_time,
                                     .program = PB_RUN_ANY_PROGRAM};
    struct pb_settings settings;

    int r = pb_settings_of(source->arg, source->pid ? &target : NULL, &settings, err);
    if (r == 0)
        pb_settings_each(&settings, add_setting, to);
    return r;
}

static void words_of(pid_t pid, char ret[PB_REDACT_SIZE])
{
    pb_redact_words(NULL, &(struct pb_target){.pid = pid}, ret);
}

static void add_frame(struct pb_table *to, const struct pb_shown_thread *t, size_t depth)
{
    const struct pb_shown_frame *f = t->nframes ? &t->frames[depth] : NULL;
    const char *name = t->name[0] ? t->name : t->native.name, *state;
    struct pb_row row;
    char buf[64];

    if (pb_row_begin(to, &row) < 0)
        return;
    state = pb_stacks_state(t, buf, sizeof(buf));
    pb_set_string(&row, PB_BT_THREAD, name, strlen(name));
    pb_set_i32(&row, PB_BT_TID, t->native.tid);
    pb_set_bool(&row, PB_BT_IS_GIL, t->gil);
    pb_set_string(&row, PB_BT_STATE, state, strlen(state));
    if (f) {
        pb_set_i32(&row, PB_BT_DEPTH, (int32_t)depth);
        pb_set_string(&row, PB_BT_FUNC, f->code->qualname, strlen(f->code->qualname));
        pb_set_string(&row, PB_BT_FILE, f->code->file, strlen(f->code->file));
        if (f->line)
            pb_set_i32(&row, PB_BT_LINENO, f->line);
        _cleanup_free_ char *locals = pb_py_locals_lines(f->locals);
        if (locals)
            pb_set_string(&row, PB_BT_LOCALS, locals, strlen(locals));
    }
    pb_row_commit(&row);
}

/* Rows of python.backtrace, one per frame; a thread whose stack cannot be read has one row that says so. */
static int add_backtrace(void *arg, pid_t pid, bool locals, struct pb_table *to, struct pb_err *err)
{
    const struct pb_stacks_options options = {.locals = locals};
    struct pb_target target = {.pid = pid};
    struct pb_stacks_answer answer = {0};

    int r = pb_stacks_ask(arg, &(struct pb_targets){.at = &target, .n = 1}, &options, PB_WAITS_NONE, &answer);
    if (r < 0 || answer.result < 0)
        return pb_fail(err, r < 0 ? r : answer.result, "%s",
                       r < 0 ? "out of memory" : pb_err_text(&answer.err, answer.result));
    const struct pb_stacks *stacks = answer.stacks;
    if (stacks->note[0])
        pb_ask_note(arg, "process %d: %s", (int)pid, stacks->note);
    for (size_t i = 0; stacks->about.python && i < stacks->n; i++) {
        const struct pb_shown_thread *t = &stacks->threads[i];
        for (size_t k = 0; t->python && k < (t->nframes ? t->nframes : 1); k++)
            add_frame(to, t, k);
    }
    pb_stacks_answers_done(&answer, 1);
    return 0;
}

static void set_known(struct pb_row *row, unsigned column, double value)
{
    if (value >= 0) /* NaN and PB_UNKNOWN are NULL */
        pb_set_i64(row, column, (int64_t)value);
}

/* The row of python.memory_now. */
static int add_memory(void *arg, pid_t pid, struct pb_table *to, struct pb_err *err)
{
    struct pb_memory m;
    struct pb_row row;

    int r = pb_memory_now(arg, pid, &m, err);
    if (r < 0 || pb_row_begin(to, &row) < 0)
        return r;
    pb_set_i32(&row, PB_MEMORY_PID, pid);
    set_known(&row, PB_MEMORY_RSS, m.rss);
    set_known(&row, PB_MEMORY_BLOCKS, (double)m.python.heap_blocks);
    set_known(&row, PB_MEMORY_ARENAS, (double)m.python.heap_arenas);
    set_known(&row, PB_MEMORY_HEAP, (double)m.python.heap_bytes);
    for (unsigned i = 0; i < 3; i++)
        set_known(&row, PB_MEMORY_GEN0 + i, (double)m.python.gc[i]);
    set_known(&row, PB_MEMORY_GPU, m.gpu);
    pb_row_commit(&row);
    return 0;
}

static int open_recordings(struct pb_live_source *live, uint64_t start_time, uid_t uid, struct pb_err *err)
{
    struct pb_recording found[PB_LIVE_MORE];

    live->start_time = start_time;
    int n = pb_runs_recordings(live->pid, start_time, uid, found, PB_LIVE_MORE);
    if (n < 0)
        return pb_fail(err, n, "recordings of process %d cannot be looked for: %s", (int)live->pid,
                       strerror(-n));
    live->nmore = (unsigned)n;
    for (unsigned i = 0; i < live->nmore; i++)
        live->more[i] = found[i].fd;
    return 0;
}

/* Opens its own tables, and the recordings of it. A process that was never probed may have been recorded, or
 * only its archive is left: *ret is -1 then. */
static int open_dead(const struct pb_ask *ask, const struct pb_target *target, struct pb_sql_source *s,
                     int *ret, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    const struct pb_run_id id = {target->pid, target->start_time, target->program};
    char rank[16];

    int r = pb_runs_scan(&runs, err);
    if (r < 0)
        return r;
    const struct pb_run_info *left = pb_runs_find_dead(&runs, &id);
    if (left) {
        pb_run_get(left, "rank", rank, sizeof(rank));
        s->rank = pb_rank_parse(rank);
        r = open_recordings(&s->live, left->id.start_time, left->uid, err);
        *ret = r < 0 ? r : pb_run_open_arena(left, err);
        return *ret < 0 && *ret != -ENOENT ? *ret : 0;
    }
    struct pb_archive_run *run = malloc(sizeof(*run));
    bool archived = run && pb_archived_run(ask, id.pid, id.start_time, run) == 0;
    if (archived)
        s->rank = run->rank;
    r = open_recordings(&s->live, archived ? run->start_time : id.start_time, geteuid(), err);
    if (archived && !run->recording)
        s->archived = pb_take_ptr(run);
    free(run);
    return r < 0 || archived || s->live.nmore
               ? r
               : pb_fail(err, -ENOENT, "process %d left nothing behind", (int)s->live.pid);
}

static int open_live_recordings(struct pb_live_source *live, struct pb_err *err)
{
    struct pb_procinfo process;

    return pb_procinfo_identify(live->pid, &process) == 0
               ? open_recordings(live, process.start_time, process.euid, err)
               : 0;
}

/* A source with nothing but its live tables. */
static struct pb_sql_source bare_source(const struct pb_ask *ask, const struct pb_target *target)
{
    struct pb_sql_source s = {.rank = pb_target_rank(target),
                              .live = {.pid = target->pid,
                                       .dead = target->dead,
                                       .arena_fd = -1,
                                       .backtrace = add_backtrace,
                                       .memory = add_memory,
                                       .own = pb_registered_table,
                                       .arg = (void *)(uintptr_t)ask,
                                       .config = add_config,
                                       .redact = words_of}};

    snprintf(s.live.label, sizeof(s.live.label), "%s", target->label);
    s.live.ranked = target->labelled_by == PB_LABEL_BY_RANK;
    return s;
}

/* Checks the tables' headers: the worker would refuse the whole query for one bad source. */
static int check_tables(int fd, pid_t pid, struct pb_err *err)
{
    char why[PB_WHY_SIZE];
    struct pb_reader *reader;

    int r = pb_reader_open(fd, &reader, why);
    if (r < 0)
        return pb_fail(err, r, "the tables of process %d cannot be read: %s", (int)pid, why);
    pb_reader_close(reader);
    return 0;
}

/* What the agent of a process left that was detached. -ENOENT: nothing. */
static int open_detached(const struct pb_ask *ask, pid_t pid)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    struct pb_procinfo process;

    if (pb_procinfo_read(pid, &process, NULL) < 0 || pb_run_left(&process, &run) < 0)
        return -ENOENT;
    int fd = pb_run_open_arena(&run, NULL);
    if (fd >= 0)
        pb_ask_note(ask, "process %d is not probed any more: these are the rows of before `detach`",
                    (int)pid);
    return fd < 0 ? -ENOENT : fd;
}

/* Runs in a child: opens the tables of a live process. No descriptor: it is not probed. */
static int open_live(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct pb_target *target = arg;
    char note[256] = "";

    int fd = pb_session_open_arena(target->pid, note, err);
    if (fd == -ENOENT)
        fd = open_detached(ask, target->pid);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    int r = check_tables(fd, target->pid, err);
    if (r < 0) {
        close(fd);
        return r;
    }
    if (note[0])
        pb_ask_note(ask, "process %d: %s", (int)target->pid, note);
    return pb_task_give_fd(room, fd);
}

/* Opens the tables of all live targets at once: one that does not answer does not delay the others. */
static struct pb_task *open_all_live(const struct pb_ask *ask, const struct pb_targets *targets)
{
    struct pb_task *tasks = calloc(targets->n + 1, sizeof(*tasks));
    size_t n = 0;

    for (size_t i = 0; tasks && i < targets->n; i++)
        if (!targets->at[i].dead)
            tasks[n++] = (struct pb_task){.work = open_live,
                                          .arg = &targets->at[i],
                                          .pid = targets->at[i].pid,
                                          .limit_ms = LIVE_LIMIT_MS,
                                          .room_size = 1 << 16};
    if (tasks)
        pb_tasks_run(ask, tasks, n, 0);
    for (size_t i = 0; i < n; i++)
        pb_room_free(tasks[i].room);
    return tasks;
}

/* live: the task that opened the target's tables; NULL: it is dead. */
static int open_source(const struct pb_ask *ask, const struct pb_target *target, struct pb_task *live,
                       struct pb_sql_source *ret, struct pb_err *err)
{
    struct pb_sql_source s = bare_source(ask, target);
    int fd = live ? pb_take_fd(live->fd) : -1, r = live ? live->result : 0;

    if (live && r < 0 && err)
        *err = live->err;
    if (!live && (r = open_dead(ask, target, &s, &fd, err)) == 0 && fd >= 0)
        r = check_tables(fd, target->pid, err);
    if (r == 0 && !target->dead)
        r = open_live_recordings(&s.live, err);
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        release_recordings(&s);
        return r;
    }
    s.live.arena_fd = fd < 0 ? -1 : fd;
    *ret = s;
    return 0;
}

/* Of several targets, one that cannot be read is named and the others are shown: a hung or damaged rank is
 * the one that people look for. */
static int keep_failed(const struct pb_ask *ask, const struct pb_target *target, struct pb_query_sources *s,
                       struct pb_err *err)
{
    struct pb_sql_source *source = &s->at[s->n];

    *source = bare_source(ask, target);
    source->live.broken = strdup(err->text);
    if (!source->live.broken)
        return pb_fail(err, -ENOMEM, "out of memory");
    s->failed++;
    err->text[0] = '\0';
    return 0;
}

/* Closes tables that were opened but are not needed because of a failure, from `live` on. */
static void close_left(struct pb_task *tasks, const struct pb_task *live, const struct pb_targets *targets)
{
    size_t n = 0;

    for (size_t i = 0; i < targets->n; i++)
        n += !targets->at[i].dead;
    for (size_t i = tasks ? (size_t)(live - tasks) : n; i < n; i++)
        if (tasks[i].fd >= 0)
            close(tasks[i].fd);
    free(tasks);
}

/* Whether the source is one of the targets. */
static bool is_of(const struct pb_sql_source *s, const struct pb_targets *targets)
{
    for (size_t i = 0; i < targets->n; i++)
        if (targets->at[i].pid == s->live.pid && targets->at[i].start_time == s->live.start_time)
            return true;
    return targets->n == 0;
}

/* Of the archive, the runs that are targets. */
static int open_archived_targets(const struct pb_ask *ask, const struct pb_targets *targets,
                                 struct pb_query_sources *ret, struct pb_err *err)
{
    unsigned n = 0;

    int r = pb_sources_open_archive(ask, ret, err);
    if (r == -ENOENT)
        return pb_fail(err, r, "the file has no recorded rows: no process was probed");
    for (unsigned i = 0; r == 0 && i < ret->n; i++) {
        if (is_of(&ret->at[i], targets))
            ret->at[n++] = ret->at[i];
        else
            release_source(&ret->at[i]);
    }
    if (r == 0)
        ret->n = n;
    if (r == 0 && n == 0) {
        pb_query_sources_done(ret);
        return pb_fail(err, -ENOENT, "the file has no recorded rows of this process");
    }
    return r;
}

int pb_sources_open(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_query_sources *ret,
                    struct pb_err *err)
{
    struct pb_query_sources s = {.no_agent = targets->n > 0};
    int r = 0;

    if (ask->only_archive)
        return open_archived_targets(ask, targets, ret, err);
    if (targets->n > PB_SQL_MAX_SOURCES)
        return pb_fail(err, -E2BIG, "%zu processes are too many for one query; %d is the most", targets->n,
                       PB_SQL_MAX_SOURCES);
    s.at = calloc(targets->n + 1, sizeof(*s.at));
    if (!s.at)
        return pb_fail(err, -ENOMEM, "out of memory");
    struct pb_task *tasks = open_all_live(ask, targets), *live = tasks;
    if (!tasks)
        r = pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < targets->n; i++) {
        const struct pb_target *target = &targets->at[i];
        r = open_source(ask, target, target->dead ? NULL : live++, &s.at[i], err);
        if (r < 0 && targets->n > 1 && r != -ENOMEM && s.failed + 1 < targets->n)
            r = keep_failed(ask, &targets->at[i], &s, err);
        if (r < 0)
            break;
        s.n++;
        s.no_agent = s.no_agent && s.at[i].live.arena_fd < 0 && !s.at[i].archived;
    }
    close_left(tasks, live, targets);
    if (r == 0)
        r = pb_archived_attach(ask, &s, err);
    /* When all probed processes are asked, a single one also gets the columns rank and target_pid. */
    if ((s.n == 0 || targets->probed) && r == 0)
        s.at[s.n++] = (struct pb_sql_source){.rank = -1, .live = {.arena_fd = -1, .config = add_config}};
    if (r < 0) {
        pb_query_sources_done(&s);
        return r;
    }
    err->text[0] = '\0';
    *ret = s;
    return 0;
}

int pb_sources_open_archive(const struct pb_ask *ask, struct pb_query_sources *ret, struct pb_err *err)
{
    struct pb_query_sources s = {0};

    int r = pb_archived_open(ask, &s, err);
    if (r < 0) {
        pb_query_sources_done(&s);
        return r;
    }
    *ret = s;
    return 0;
}
