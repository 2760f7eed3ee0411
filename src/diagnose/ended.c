/* ended: see ended.h. Runs are files of their user: what they say is bounded, cleaned, and believed only
 * about the run itself. */
#include "diagnose/ended.h"

#include "ask/ask.h"
#include "ask/targets.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "control/rundir.h"
#include "diagnose/last_words.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    LIMIT_MS = 5000, /* normally some ms, but the machine may have no CPU for it */
    ROOM = 16 << 20,
    RECENT_S = 600,  /* a job that ended earlier is shown only where it is named */
    TOGETHER_S = 60, /* ranks of one job start and end within that of each other */
    RUNS_MAX = 4096,
};

/* A run, as the child found it. */
struct left_run {
    struct pb_diag_ended ended;
    int world;
    char key[256], command[256];
};

struct left_runs {
    struct left_run *at;
    size_t n;
};

static const char *get(const struct pb_run_info *run, const char *name, char *ret, size_t size)
{
    pb_run_get(run, name, ret, size);
    pb_text_clean(ret);
    return ret;
}

static void fill_run(const struct pb_run_info *run, struct left_run *ret)
{
    char text[256], job[128];

    *ret = (struct left_run){.ended = {.rank = pb_rank_parse(get(run, "rank", text, sizeof(text))),
                                       .pid = run->id.pid,
                                       .start_time = run->id.start_time,
                                       .program = run->id.program,
                                       .has_run = true,
                                       .status = -1,
                                       .ago = difftime(time(NULL), run->changed)}};
    ret->world = pb_rank_parse(get(run, "world_size", text, sizeof(text)));
    get(run, "command", ret->command, sizeof(ret->command));
    get(run, "rendezvous", text, sizeof(text));
    get(run, "job", job, sizeof(job));
    if (text[0])
        snprintf(ret->key, sizeof(ret->key), "%.120s/%.120s", text, job);
    else
        snprintf(ret->key, sizeof(ret->key), "%.120s", job);
}

/* Whether another ended rank writes its errors to the same file. */
static bool is_shared(const struct pb_runs *runs, size_t index, const char *inode)
{
    char other[32];

    for (size_t i = 0; inode[0] && i < runs->n; i++)
        if (i != index && strcmp(get(&runs->at[i], "errors_inode", other, sizeof(other)), inode) == 0)
            return true;
    return false;
}

static void read_words(const struct pb_runs *runs, size_t i, struct pb_diag_ended *e)
{
    char path[4096], inode[32];

    pb_run_get(&runs->at[i], "errors", path, sizeof(path));
    get(&runs->at[i], "errors_inode", inode, sizeof(inode));
    /* A file of a run that another user owns is that user's word on which file we, perhaps root, open. */
    if (path[0] && runs->at[i].uid == geteuid())
        pb_last_words_read(path, strtoull(inode, NULL, 10), is_shared(runs, i, inode), e);
    pb_run_get(&runs->at[i], "error_file", path, sizeof(path));
    if (path[0] && runs->at[i].uid == geteuid())
        pb_last_words_of_torchrun(path, e);
}

/* In a child: files of runs may be on a mount that hangs. The answer is an array, its length the result. */
static int read_runs(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    const struct pb_targets *targets = arg;
    (void)ask;

    int r = pb_runs_scan(&runs, err);
    if (r < 0)
        return r;
    size_t n = 0, room_for = runs.n < RUNS_MAX ? runs.n : RUNS_MAX;
    struct left_run *at = pb_room_alloc(room, (room_for + 1) * sizeof(*at));
    struct pb_diag_ended *all = calloc(room_for + 1, sizeof(*all));
    if (!at || !all) {
        free(all);
        return pb_fail(err, -ENOSPC, "too many runs");
    }
    for (size_t i = 0; i < room_for; i++) {
        const struct pb_run_info *run = &runs.at[i];
        bool named = false;
        for (size_t k = 0; k < targets->n; k++)
            named |= targets->at[k].dead && targets->at[k].pid == run->id.pid;
        if (run->alive || run->detached || strstr(run->path, PB_RUNDIR_OF) ||
            (!targets->n && difftime(time(NULL), run->changed) > RECENT_S) || pb_targets_is_running(&run->id))
            continue;
        fill_run(run, &at[n]);
        if (at[n].ended.rank < 0 && !named)
            continue;
        read_words(&runs, i, &at[n].ended);
        n++;
    }
    for (size_t i = 0; i < n; i++)
        all[i] = at[i].ended;
    pb_last_words_of_kernel(all, n);
    for (size_t i = 0; i < n; i++)
        at[i].ended = all[i];
    free(all);
    pb_task_answer(room, at);
    return (int)n;
}

/* Another process has the pid now. */
static bool is_reused(const struct pb_diag_jobs *jobs, const struct left_run *run)
{
    for (size_t i = 0; i < jobs->n; i++)
        for (size_t k = 0; k < jobs->at[i].nprocesses; k++) {
            const struct pb_diag_process *p = &jobs->at[i].processes[k];
            if (p->pid == run->ended.pid && p->state != 'Z' && p->state != 'X' && p->age < run->ended.ago)
                return true;
        }
    return false;
}

/* A pid alone names whoever has it now. */
static bool is_named(const struct pb_targets *targets, const struct pb_diag_jobs *jobs,
                     const struct left_run *run)
{
    for (size_t i = 0; i < targets->n; i++)
        if (targets->at[i].pid == run->ended.pid &&
            (targets->at[i].start_time ? targets->at[i].start_time == run->ended.start_time
                                       : !is_reused(jobs, run)))
            return true;
    return false;
}

static bool is_wanted(const struct pb_targets *targets, const struct pb_diag_jobs *jobs,
                      const struct left_runs *runs, const struct left_run *run)
{
    if (!targets->n)
        return run->ended.ago <= RECENT_S;
    for (size_t i = 0; i < runs->n; i++)
        if (is_named(targets, jobs, &runs->at[i]) &&
            (&runs->at[i] == run || (run->key[0] && strcmp(runs->at[i].key, run->key) == 0)))
            return true;
    return false;
}

/* Whether it ended before all that lives of the job began: another job, or an earlier attempt, met there. */
static bool is_older(const struct pb_diag_job *job, const struct left_run *run)
{
    double oldest = -1;

    for (size_t i = 0; i < job->nprocesses; i++)
        if (job->processes[i].parent == PB_NOBODY && job->processes[i].age > oldest)
            oldest = job->processes[i].age;
    return run->ended.ago >= 0 && oldest >= 0 && run->ended.ago > oldest + TOGETHER_S;
}

/* A job whose ranks meet there; one of ended ranks only where this one ended with them. */
static struct pb_diag_job *find_job(const struct pb_diag_jobs *jobs, const struct left_run *run)
{
    for (size_t i = 0; run->key[0] && run->ended.rank >= 0 && i < jobs->n; i++) {
        struct pb_diag_job *job = &jobs->at[i];
        if (strcmp(job->key, run->key) != 0)
            continue;
        if (job->over ? run->ended.ago - job->ended[0].ago < TOGETHER_S : !is_older(job, run))
            return job;
    }
    return NULL;
}

static struct pb_diag_job *add_job(struct pb_diag_jobs *jobs, const struct left_run *run)
{
    struct pb_diag_job *more = reallocarray(jobs->at, jobs->n + 1, sizeof(*more));

    if (!more)
        return NULL;
    jobs->at = more;
    struct pb_diag_job *job = &more[jobs->n++];
    *job = (struct pb_diag_job){
        .ranks = run->ended.rank >= 0, .over = true, .world = run->world > 0 ? run->world : 1};
    snprintf(job->key, sizeof(job->key), "%s", run->key);
    pb_diag_job_name(run->command, job->name, sizeof(job->name));
    return job;
}

/* The process that it was: there as a zombie, missing, or not listed at all. False: another process is that
 * rank now, so it is of an earlier attempt. */
static int place_process(struct pb_diag_job *job, const struct left_run *run, bool *ret_taken)
{
    for (size_t i = 0; run->ended.rank >= 0 && i < job->nprocesses; i++) {
        struct pb_diag_process *p = &job->processes[i];
        if (p->parent != PB_NOBODY || p->rank != run->ended.rank)
            continue;
        *ret_taken = (p->state != 'Z' && p->state != 'X') || (p->pid && p->pid != run->ended.pid);
        p->pid = *ret_taken ? p->pid : run->ended.pid;
        return 0;
    }
    *ret_taken = false;
    struct pb_diag_process *more = reallocarray(job->processes, job->nprocesses + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    job->processes = more;
    struct pb_diag_process *p = &more[job->nprocesses++];
    *p = (struct pb_diag_process){
        .pid = run->ended.pid, .rank = run->ended.rank, .parent = PB_NOBODY, .state = 'X', .status = -1};
    snprintf(p->command, sizeof(p->command), "%s", run->command);
    return 0;
}

static int add_run(struct pb_diag_jobs *jobs, const struct left_run *run)
{
    struct pb_diag_job *job = find_job(jobs, run);
    bool taken;

    if (!job)
        job = add_job(jobs, run);
    int r = job ? place_process(job, run, &taken) : -ENOMEM;
    if (r < 0 || taken)
        return r;
    struct pb_diag_ended *more = reallocarray(job->ended, job->nended + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    job->ended = more;
    more[job->nended++] = run->ended;
    return 0;
}

/* --- ranks without a run --- */

static int read_living(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct pb_diag_job *job = arg;
    struct pb_diag_ended *at = pb_room_copy(room, job->ended, (job->nended + 1) * sizeof(*at));
    (void)ask;

    if (!at)
        return pb_fail(err, -ENOSPC, "too many ranks");
    for (size_t i = 0; i < job->nended; i++) {
        struct stat one, other;
        char path[48], errors[4096];
        bool shared = false;
        if (!at[i].living)
            continue;
        snprintf(path, sizeof(path), "/proc/%d/fd/2", (int)at[i].pid);
        if (stat(path, &one) < 0 || !S_ISREG(one.st_mode))
            continue;
        for (size_t k = 0; k < job->nprocesses; k++) {
            snprintf(path, sizeof(path), "/proc/%d/fd/2", (int)job->processes[k].pid);
            shared |= job->processes[k].parent == PB_NOBODY && job->processes[k].pid != at[i].pid &&
                      stat(path, &other) == 0 && other.st_ino == one.st_ino && other.st_dev == one.st_dev;
        }
        snprintf(path, sizeof(path), "/proc/%d/fd/2", (int)at[i].pid);
        ssize_t n = readlink(path, errors, sizeof(errors) - 1);
        errors[n > 0 ? n : 0] = '\0';
        pb_last_words_read(errors, one.st_ino, shared, &at[i]);
    }
    pb_task_answer(room, at);
    return 0;
}

static int add_ended(struct pb_diag_job *job, const struct pb_diag_process *p, bool living)
{
    for (size_t i = 0; i < job->nended; i++)
        if (job->ended[i].rank == p->rank && (!p->pid || job->ended[i].pid == p->pid)) {
            job->ended[i].signal = p->signal;
            job->ended[i].status = p->status;
            return 0;
        }
    struct pb_diag_ended *more = reallocarray(job->ended, job->nended + 2, sizeof(*more));
    if (!more)
        return -ENOMEM;
    job->ended = more;
    more[job->nended++] = (struct pb_diag_ended){.rank = p->rank,
                                                 .pid = p->pid,
                                                 .living = living,
                                                 .unread = living && !p->n,
                                                 .signal = p->signal,
                                                 .status = p->status,
                                                 .ago = -1};
    return 0;
}

bool pb_diag_is_finalizing(const struct pb_diag_job *job, const struct pb_diag_process *p)
{
    if (p->newborn || p->parent != PB_NOBODY || p->state == 'Z' || p->state == 'X')
        return false;
    return p->n ? job->threads[p->first].finalizing : p->result == -ENOTSUP /* no interpreter there */;
}

int pb_diag_ended_complete(const struct pb_ask *ask, struct pb_diag_job *job)
{
    struct pb_ask limited = *ask;
    struct pb_task task = {.work = read_living, .arg = job, .limit_ms = LIMIT_MS, .room_size = ROOM};
    struct pb_err ignored;
    bool any = false;
    int r = 0;

    for (size_t i = 0; r == 0 && i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        bool living = pb_diag_is_finalizing(job, p);
        if (p->parent != PB_NOBODY || (!living && p->state != 'Z' && p->state != 'X'))
            continue;
        any |= living;
        r = add_ended(job, p, living);
    }
    limited.limit_ms = LIMIT_MS;
    if (r == 0 && any && pb_task_run(&limited, &task, &ignored) == 0) {
        const struct pb_diag_ended *read = pb_task_answer_of(&task);
        memcpy(job->ended, read, job->nended * sizeof(*read));
    }
    pb_room_free(task.room);
    return r;
}

/* --- runs --- */

int pb_diag_ended_add(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_diag_jobs *jobs,
                      struct pb_err *err)
{
    struct pb_ask limited = *ask;
    struct pb_targets wanted = *targets;
    struct pb_task task = {.work = read_runs, .arg = &wanted, .limit_ms = LIMIT_MS, .room_size = ROOM};
    struct pb_err why;

    limited.limit_ms = LIMIT_MS;
    int r = pb_task_run(&limited, &task, &why);
    if (r < 0)
        pb_ask_note(ask, "what ended processes left could not be read: %s", pb_err_text(&why, r));
    struct left_runs runs = {pb_task_answer_of(&task), r > 0 ? (size_t)r : 0};
    int failed = 0;
    for (size_t i = 0; runs.at && failed == 0 && i < runs.n; i++)
        if (find_job(jobs, &runs.at[i]) || is_wanted(targets, jobs, &runs, &runs.at[i]))
            failed = add_run(jobs, &runs.at[i]);
    pb_room_free(task.room);
    return failed < 0 ? pb_fail(err, failed, "out of memory") : 0;
}
