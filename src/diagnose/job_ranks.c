/* job_ranks: see job_ranks.h. */
#include "diagnose/job_ranks.h"

#include "ask/ask.h"
#include "ask/process_settings.h"
#include "ask/processes.h"
#include "ask/stacks.h"
#include "ask/targets.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "base/text.h"
#include "control/identity.h"
#include "diagnose/ended.h"
#include "remote/procinfo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    ONE_LIMIT_MS = 2000, /* for one process; normally less than a millisecond */
    ROOM = 32 << 20,
    YOUNG_S = 5,
    NEWBORN_S = 2,
    MEMBERS_MAX = 4096, /* of one job */
};

/* What is read of a process. */
struct seen_job {
    pid_t pid, ppid, tracer;
    char state;
    bool python, young, newborn, used;
    double age;
    int rank, world, exit, session, port;
    uint64_t start_time;
    char key[160]; /* which job: "": its launcher set nothing */
    char command[256];
    size_t job; /* PB_NOBODY: none yet */
};

struct job_listing {
    struct seen_job *at;
    size_t n;
    bool all_read;
};

static const char *variable(const char *block, size_t len, const char *name)
{
    size_t n = strlen(name);

    for (size_t at = 0; at < len; at += strlen(block + at) + 1)
        if (strncmp(block + at, name, n) == 0 && block[at + n] == '=')
            return block + at + n + 1;
    return "";
}

static void read_identity(pid_t pid, struct seen_job *s)
{
    _cleanup_free_ char *block = NULL;
    struct pb_identity id;
    size_t len;
    char end;

    if (pb_proc_slurp(pb_proc_living(pid), "environ", &block, &len) < 0)
        return;
    pb_identity_read(block, len, &id);
    if (sscanf(id.value[PB_ID_RANK], "%d%c", &s->rank, &end) != 1 || s->rank < 0)
        s->rank = -1;
    if (sscanf(id.value[PB_ID_WORLD_SIZE], "%d", &s->world) != 1 || s->world < 0)
        s->world = 0;
    if (s->rank < 0)
        return;
    const char *port = variable(block, len, "MASTER_PORT");
    s->port = atoi(port);
    if (port[0])
        snprintf(s->key, sizeof(s->key), "%s:%s/%s", variable(block, len, "MASTER_ADDR"), port,
                 id.value[PB_ID_JOB]);
    else if (id.value[PB_ID_JOB][0])
        snprintf(s->key, sizeof(s->key), "%s", id.value[PB_ID_JOB]);
}

static double uptime(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Field 52 of stat, the exit code as waitpid has it; -1: the kernel does not tell. */
static void read_stat(pid_t pid, struct seen_job *s)
{
    char stat[1024];

    if (pb_proc_read(pid, "stat", stat, sizeof(stat)) < 0)
        return;
    const char *last = strrchr(stat, ' '), *name = strrchr(stat, ')');
    s->exit = last ? atoi(last + 1) : -1;
    if (name)
        sscanf(name, ") %*c %*d %*d %d", &s->session);
}

static int read_one(const struct pb_ask *ask, void *arg, size_t i, struct pb_room *room, void **ret)
{
    const pid_t *pids = arg;
    struct pb_procinfo info;
    struct seen_job s = {.pid = pids[i], .rank = -1, .exit = -1, .job = PB_NOBODY};

    if (s.pid == getpid() || s.pid == getppid() || pb_procinfo_read(s.pid, &info, NULL) < 0 ||
        info.kernel_thread)
        return 0;
    s.ppid = info.ppid;
    s.tracer = info.tracer;
    s.state = info.state;
    s.python = info.python;
    s.age = uptime() - (double)info.start_time / (double)sysconf(_SC_CLK_TCK);
    s.young = s.age < YOUNG_S;
    s.newborn = s.age < NEWBORN_S;
    s.start_time = info.start_time;
    read_stat(s.pid, &s);
    if (s.state == 'Z') {
        snprintf(s.command, sizeof(s.command), "%s", info.comm);
    } else {
        read_identity(s.pid, &s);
        pb_redact_cmdline(s.pid, s.command, sizeof(s.command));
    }
    pb_text_clean(s.command);
    *ret = pb_room_copy(room, &s, sizeof(s));
    return *ret ? 0 : -ENOSPC;
}

static int read_all(const struct pb_ask *ask, struct job_listing *ret, struct pb_err *err)
{
    _cleanup_free_ pid_t *pids = NULL;
    struct pb_each each = {.work = read_one, .limit_ms = ONE_LIMIT_MS, .room_size = ROOM};

    int r = pb_processes_pids(&pids, &each.n, err);
    if (r < 0)
        return r;
    each.arg = pids;
    r = pb_each_run(ask, &each);
    ret->at = r == 0 ? calloc(each.n + 1, sizeof(*ret->at)) : NULL;
    ret->all_read = true;
    for (size_t i = 0; ret->at && i < each.n; i++)
        if (each.at[i].result < 0)
            ret->all_read = false;
    for (size_t i = 0; ret->at && i < each.n; i++)
        if (each.at[i].answer)
            ret->at[ret->n++] = *(const struct seen_job *)each.at[i].answer;
        else if (each.at[i].result == -ETIMEDOUT)
            pb_ask_note(ask, "process %d hangs in the kernel and is left out", (int)pids[i]);
    pb_each_done(&each);
    return r < 0     ? pb_fail(err, r, r == -ECANCELED ? "cancelled" : "out of memory")
           : ret->at ? 0
                     : pb_fail(err, -ENOMEM, "out of memory");
}

static size_t find(const struct job_listing *l, pid_t pid)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->at[i].pid == pid)
            return i;
    return PB_NOBODY;
}

/* The outermost process of the same rank of the same job: what a rank starts inherits its environment. */
static bool is_top(const struct job_listing *l, const struct seen_job *s)
{
    size_t parent = find(l, s->ppid);

    return parent == PB_NOBODY || l->at[parent].rank != s->rank || strcmp(l->at[parent].key, s->key) != 0;
}

static bool is_below(const struct job_listing *l, size_t i, size_t ancestor)
{
    /* Pids may be reused while we read, so that parents form a loop: it must end. */
    for (int depth = 0; i != PB_NOBODY && depth < 64; depth++) {
        i = find(l, l->at[i].ppid);
        if (i == ancestor)
            return true;
    }
    return false;
}

static bool starts_ranks(const struct job_listing *l, size_t i)
{
    for (size_t k = 0; k < l->n; k++)
        if (l->at[k].rank >= 0 && is_below(l, k, i))
            return true;
    return false;
}

static size_t find_job(const struct pb_diag_jobs *jobs, const struct job_listing *l, const struct seen_job *s)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct seen_job *o = &l->at[i];
        if (o->job == PB_NOBODY || o->job >= jobs->n || o->rank < 0 || strcmp(o->key, s->key) != 0 ||
            (!s->key[0] && o->ppid != s->ppid))
            continue;
        bool taken = false;
        for (size_t k = 0; k < jobs->at[o->job].nprocesses; k++)
            taken |= jobs->at[o->job].processes[k].rank == s->rank &&
                     jobs->at[o->job].processes[k].parent == PB_NOBODY;
        if (!taken)
            return o->job;
    }
    return PB_NOBODY;
}

void pb_diag_job_name(const char *command, char *ret, size_t size)
{
    const char *word = command, *name = command;
    size_t length = strcspn(command, " ");

    for (; *word; word += strcspn(word, " "), word += strspn(word, " ")) {
        size_t n = strcspn(word, " ");
        if (n > 3 && strncmp(word + n - 3, ".py", 3) == 0) {
            name = word;
            length = n;
            break;
        }
        if (n == 2 && strncmp(word, "-m", 2) == 0 && word[2] == ' ') {
            name = word + 3;
            length = strcspn(name, " ");
            break;
        }
    }
    for (size_t i = 0; i < length; i++)
        if (name[i] == '/') {
            name += i + 1;
            length -= i + 1;
            i = (size_t)-1;
        }
    snprintf(ret, size, "%.*s", (int)length, name);
}

static int add_job(struct pb_diag_jobs *jobs, const struct seen_job *s)
{
    struct pb_diag_job *more = reallocarray(jobs->at, jobs->n + 1, sizeof(*more));

    if (!more)
        return -ENOMEM;
    jobs->at = more;
    more[jobs->n] =
        (struct pb_diag_job){.ranks = s->rank >= 0, .world = s->rank >= 0 ? s->world : 1, .port = s->port};
    pb_diag_job_name(s->command, more[jobs->n].name, sizeof(more[jobs->n].name));
    snprintf(more[jobs->n].key, sizeof(more[jobs->n].key), "%s", s->key);
    jobs->n++;
    return 0;
}

static int add_process(struct pb_diag_job *job, const struct seen_job *s, int rank, size_t parent)
{
    if (job->nprocesses == MEMBERS_MAX)
        return 0;
    struct pb_diag_process *more = reallocarray(job->processes, job->nprocesses + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    job->processes = more;
    struct pb_diag_process *p = &more[job->nprocesses++];
    *p = (struct pb_diag_process){.pid = s->pid,
                                  .ppid = s->ppid,
                                  .rank = rank,
                                  .parent = parent,
                                  .state = s->state,
                                  .tracer = s->tracer,
                                  .age = s->age,
                                  .young = s->young,
                                  .newborn = s->newborn,
                                  .status = -1};
    snprintf(p->command, sizeof(p->command), "%s", s->command);
    if (s->state == 'Z' && s->exit >= 0) {
        p->signal = s->exit & 0x7f;
        p->status = p->signal ? -1 : s->exit >> 8 & 0xff;
    }
    return 0;
}

/* What Python forks or spawns by multiprocessing is a part of it; another program that happens to be Python
 * is not, but for a rank, whose children are all its own. */
static bool is_part(const struct seen_job *parent, const struct seen_job *child)
{
    return !child->python || parent->rank >= 0 || strcmp(parent->command, child->command) == 0 ||
           strstr(child->command, "multiprocessing.");
}

static int add_children(const struct job_listing *l, struct pb_diag_job *job, size_t parent)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < l->n; i++)
        if (l->at[i].ppid == job->processes[parent].pid && !l->at[i].used &&
            is_part(&l->at[find(l, job->processes[parent].pid)], &l->at[i])) {
            l->at[i].used = true;
            r = add_process(job, &l->at[i], job->processes[parent].rank, parent);
        }
    return r;
}

/* Whether an ended process was started by the launcher of the job, with its ranks: the reaper of a container
 * has ended children of all kinds. */
static bool was_rank(const struct job_listing *l, const struct pb_diag_job *job, const struct seen_job *s)
{
    enum { TOGETHER_S = 30 };
    size_t other = find(l, job->processes[0].pid);
    long ticks = TOGETHER_S * sysconf(_SC_CLK_TCK);

    return job->launcher > 1 && s->state == 'Z' && s->ppid == job->launcher && other != PB_NOBODY &&
           s->session == l->at[other].session && s->start_time + (uint64_t)ticks > l->at[other].start_time &&
           l->at[other].start_time + (uint64_t)ticks > s->start_time;
}

/* The ended child of a launcher whose rank is missing: the only one that is, or by the order of pids where
 * as many ended as are missing. */
static int add_ended_ranks(const struct job_listing *l, struct pb_diag_job *job)
{
    int nmissing = 0, r = 0;
    _cleanup_free_ int *missing = calloc((size_t)job->world + 1, sizeof(*missing));
    size_t nended = 0;

    if (!missing)
        return -ENOMEM;
    for (int rank = 0; rank < job->world; rank++) {
        bool there = false;
        for (size_t i = 0; i < job->nprocesses; i++)
            there |= job->processes[i].rank == rank;
        if (!there)
            missing[nmissing++] = rank;
    }
    for (size_t i = 0; i < l->n; i++)
        nended += was_rank(l, job, &l->at[i]);
    int given = 0;
    for (size_t i = 0; r == 0 && nended == (size_t)nmissing && i < l->n; i++)
        if (was_rank(l, job, &l->at[i]))
            r = add_process(job, &l->at[i], missing[given++], PB_NOBODY);
    /* Those of which nothing is left; on other nodes they may be well: then nobody here is missing. */
    bool together = given == 0 && l->all_read && (size_t)nmissing < job->nprocesses && nmissing > 0;
    for (int i = 0; r == 0 && together && i < nmissing; i++) {
        const struct seen_job gone = {.state = 'X', .exit = -1};
        r = add_process(job, &gone, missing[i], PB_NOBODY);
    }
    return r;
}

static int by_rank(const void *a, const void *b)
{
    const struct pb_diag_process *x = a, *y = b;

    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                              : (x->pid > y->pid) - (x->pid < y->pid);
}

static int fill_job(const struct job_listing *l, struct pb_diag_job *job)
{
    pid_t parent = job->processes[0].ppid;
    int r = 0;

    for (size_t i = 0; i < job->nprocesses; i++)
        if (job->processes[i].ppid != parent)
            parent = 0;
    job->launcher = parent;
    if (job->ranks && job->world && job->world <= MEMBERS_MAX)
        r = add_ended_ranks(l, job);
    qsort(job->processes, job->nprocesses, sizeof(*job->processes), by_rank);
    /* The list grows while it is walked: children of children come too. */
    for (size_t i = 0; r == 0 && i < job->nprocesses; i++)
        if (job->processes[i].pid > 0)
            r = add_children(l, job, i);
    return r;
}

/* A pid alone names the process that has it now: one that has ended is meant where no other has its pid. */
static bool is_meant(const struct job_listing *l, const struct pb_target *t, const struct pb_diag_process *p)
{
    if (t->pid != p->pid)
        return false;
    return p->state != 'X' || t->dead || find(l, p->pid) == PB_NOBODY;
}

static bool has_target(const struct job_listing *l, const struct pb_diag_job *job,
                       const struct pb_targets *targets)
{
    for (size_t i = 0; i < targets->n; i++)
        for (size_t k = 0; k < job->nprocesses; k++)
            if (is_meant(l, &targets->at[i], &job->processes[k]))
                return true;
    return targets->n == 0;
}

static int add_rank(struct pb_diag_jobs *jobs, struct job_listing *l, struct seen_job *s)
{
    size_t job = find_job(jobs, l, s);
    int r = 0;

    if (job == PB_NOBODY) {
        job = jobs->n;
        r = add_job(jobs, s);
    }
    s->job = job;
    s->used = true;
    return r < 0 ? r : add_process(&jobs->at[job], s, s->rank, PB_NOBODY);
}

/* Drops what the looks have shown; the processes stay. */
static void forget_look(struct pb_diag_job *job)
{
    for (size_t i = 0; i < job->nends; i++)
        free(job->ends[i].blocked);
    free(job->ends);
    free(job->edges);
    for (size_t i = 0; job->joined && i < job->nthreads; i++)
        free(job->threads[i].wait.group_ranks);
    free(job->threads);
    if (job->answers)
        pb_stacks_answers_done(job->answers, job->nanswers);
    free(job->answers);
    job->ends = NULL;
    job->edges = NULL;
    job->threads = NULL;
    job->answers = NULL;
    job->nends = job->nedges = job->nthreads = job->nanswers = 0;
    for (size_t i = 0; i < job->nprocesses; i++)
        job->processes[i].first = job->processes[i].n = 0;
}

static void job_done(struct pb_diag_job *job)
{
    forget_look(job);
    free(job->processes);
    free(job->ended);
    *job = (struct pb_diag_job){0};
}

int pb_diag_jobs_find(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_diag_jobs *ret,
                      struct pb_err *err)
{
    struct job_listing l = {0};
    struct pb_diag_jobs jobs = {0};

    int r = read_all(ask, &l, err);
    for (size_t i = 0; r == 0 && i < l.n; i++)
        if (l.at[i].rank >= 0 && l.at[i].python && is_top(&l, &l.at[i]))
            r = add_rank(&jobs, &l, &l.at[i]);
    for (size_t i = 0; r == 0 && i < jobs.n; i++)
        r = fill_job(&l, &jobs.at[i]);
    for (size_t i = 0; r == 0 && i < l.n; i++) {
        struct seen_job *s = &l.at[i];
        size_t parent = find(&l, s->ppid);
        if (s->used || !s->python || s->rank >= 0 || starts_ranks(&l, i) ||
            (parent != PB_NOBODY && l.at[parent].python && !starts_ranks(&l, parent) &&
             is_part(&l.at[parent], s)))
            continue;
        s->used = true;
        r = add_job(&jobs, s);
        if (r == 0)
            r = add_process(&jobs.at[jobs.n - 1], s, -1, PB_NOBODY);
        if (r == 0)
            r = fill_job(&l, &jobs.at[jobs.n - 1]);
    }
    if (r == 0)
        r = pb_diag_ended_add(ask, targets, &jobs, err);
    size_t kept = 0;
    for (size_t i = 0; i < jobs.n; i++)
        if (has_target(&l, &jobs.at[i], targets))
            jobs.at[kept++] = jobs.at[i];
        else
            job_done(&jobs.at[i]);
    jobs.n = kept;
    free(l.at);
    if (r < 0) {
        pb_diag_jobs_done(&jobs);
        return pb_fail(err, r, "%s", pb_err_text(err, r));
    }
    *ret = jobs;
    return 0;
}

void pb_diag_jobs_done(struct pb_diag_jobs *jobs)
{
    for (size_t i = 0; i < jobs->n; i++)
        job_done(&jobs->at[i]);
    free(jobs->at);
    *jobs = (struct pb_diag_jobs){0};
}
