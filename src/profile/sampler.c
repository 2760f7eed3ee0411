/* sampler: the clock and the processes; see sampler.h. */
#include "profile/sampler.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/procfs.h"
#include "base/time.h"
#include "base/vector.h"
#include "profile/watch.h"
#include "remote/trace.h"

#define PROCESSES_MAX  1024
#define CHILDREN_NS    (PB_NS_PER_S / 2)   /* how often new children are looked for */
#define LOOKS_A_SECOND 5000                /* looks at sleeping threads: 1% of a core */
#define SHORT_NS       3000                /* below this we do not sleep: a sleep takes longer */
#define CANCEL_NS      (PB_NS_PER_S / 10)  /* a wait checks for cancellation this often */
#define LATE_PERIODS   1                   /* a tick later than this is skipped */
#define STOPS_NS       (20 * PB_NS_PER_MS) /* per tick, for a process whose threads do not stop */
#define TURN_NS        (20 * PB_NS_PER_MS) /* per tick, at least, shared by all processes */
#define TURN_MIN_NS    (2 * PB_NS_PER_MS)

int pb_sampler_new(const struct pb_sampler_options *options, struct pb_profile *profile,
                   const struct pb_sink *sink, struct pb_sampler **ret)
{
    struct pb_sampler *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->options = *options;
    s->profile = profile;
    if (sink)
        s->sink = *sink;
    s->facts = pb_profile_facts(profile);
    s->cpu = -1;
    s->period = options->rate > 0 ? (uint64_t)(1e9 / options->rate) : 0;
    /* Stopping from another CPU holds a thread for a shorter time than taking over its CPU. */
    s->ways = PB_WAY_ASLEEP | PB_WAY_INTERRUPTED |
              (options->no_stop ? (options->native ? 0 : PB_WAY_PINNED) : PB_WAY_STOPPED);
    int r = options->native ? pb_native_buffers_new(&s->buffers) : 0;
    if (r < 0) {
        free(s);
        return r;
    }
    if (sched_getaffinity(0, sizeof(s->allowed), &s->allowed) < 0)
        CPU_ZERO(&s->allowed);
    pb_limits_allow_descriptors(); /* three a thread; with fewer their files are opened each time */
    s->random = pb_now_ns() | 1;
    (void)prctl(PR_SET_TIMERSLACK, 1); /* wake up on time, not within 50 us */
    s->facts->rate = options->rate;
    s->facts->clock = options->gil ? "GIL" : options->cpu ? "CPU" : "wall";
    *ret = s;
    return 0;
}

void pb_sampler_free(struct pb_sampler *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        pb_watch_free(s->processes[i]);
    free(s->processes);
    pb_py_stack_done(&s->stack);
    pb_capture_done(&s->capture);
    pb_native_buffers_free(s->buffers);
    free(s);
}

/* Takes a sample of each thread that does not count, before the clock starts: the first read of symbols,
 * tables and names is slow. */
static void warm_up(struct pb_sampler *s, struct pb_process_watch *w)
{
    struct pb_profile_facts before = *s->facts;
    uint64_t now = pb_now_ns();

    s->warming = true;
    w->stops_left_ns = STOPS_NS;
    pb_watch_refresh(s, w, now);
    for (size_t i = 0; i < w->n; i++)
        (void)pb_watch_sample(s, w, &w->threads[i], now);
    s->warming = false;
    *s->facts = before;
}

int pb_sampler_attach(struct pb_sampler *s, pid_t pid, const char *label, int32_t rank, struct pb_err *err)
{
    struct pb_process_watch *w;

    if (pb_sampler_watches(s, pid))
        return pb_fail(err, -EALREADY, "process %d is being sampled already", (int)pid);
    if (s->n == PROCESSES_MAX)
        return pb_fail(err, -EMFILE, "more than %d processes", PROCESSES_MAX);
    if (pb_grow((void **)&s->processes, &s->cap, s->n, sizeof(struct pb_process_watch *), NULL) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_watch_open(s, pid, label, &w, err);
    if (r < 0)
        return r;
    w->rank = rank;
    s->processes[s->n++] = w;
    s->facts->processes++;
    warm_up(s, w);
    return 0;
}

static uint64_t next_random(struct pb_sampler *s)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

#define SHARE_ALONE 0.08                   /* of the only CPU */
#define SHARE_AHEAD 0.25                   /* of a CPU, with a priority above others */
#define CREDIT_NS   (100.0 * PB_NS_PER_MS) /* the part of its share that may be used at once */
#define DEBT_NS     (250.0 * PB_NS_PER_MS) /* the debt allowed for the start */

/* A CPU quota of the cgroup is shared with the target, like a CPU. */
static double allowed_share(void)
{
    struct pb_limits limits;

    pb_limits_read(&limits);
    if (limits.cpus == 1)
        return SHARE_ALONE;
    int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
    bool ahead = policy == SCHED_RR || policy == SCHED_FIFO || getpriority(PRIO_PROCESS, 0) < 0;
    return ahead ? SHARE_AHEAD : 0;
}

static uint64_t own_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * PB_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Until when the sampler must leave the CPU to others. */
static uint64_t rest_until(struct pb_sampler *s, uint64_t now)
{
    if (s->share <= 0)
        return now;
    uint64_t cpu = own_cpu_ns();
    s->credit_ns += (double)(now - s->paid_at) * s->share - (double)(cpu - s->paid);
    if (s->credit_ns > CREDIT_NS * s->share)
        s->credit_ns = CREDIT_NS * s->share;
    s->paid = cpu;
    s->paid_at = now;
    return s->credit_ns >= 0 ? now : now + (uint64_t)(-s->credit_ns / s->share);
}

/* The CPU time used so far, with the first read of symbols and names, counts too. */
static void charge_start(struct pb_sampler *s, uint64_t now)
{
    s->share = allowed_share();
    s->paid = own_cpu_ns();
    s->paid_at = now;
    s->credit_ns = CREDIT_NS * s->share - (double)s->paid;
    if (s->credit_ns < -DEBT_NS * s->share)
        s->credit_ns = -DEBT_NS * s->share;
}

/* Sleeps in slices, between which it can be cancelled. */
static int sleep_until(struct pb_sampler *s, uint64_t due)
{
    int r = 0;

    for (uint64_t now = pb_now_ns(); r == 0 && now < due; now = pb_now_ns()) {
        uint64_t to = s->cancelled && due > now + CANCEL_NS ? now + CANCEL_NS : due;
        struct timespec t = {.tv_sec = (time_t)(to / PB_NS_PER_S), .tv_nsec = (long)(to % PB_NS_PER_S)};
        r = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        if (r == EINTR && pb_trace_woke_us())
            r = 0;
        if (s->cancelled && atomic_load(s->cancelled))
            r = EINTR;
    }
    return -r;
}

int pb_sampler_wait(struct pb_sampler *s)
{
    uint64_t now = pb_now_ns();

    if (!s->started) {
        s->start = s->next = now;
        pb_profile_clocks_now(&s->facts->start);
        charge_start(s, now);
        s->started = true;
    }
    if (!s->period)
        return 0;
    uint64_t due = s->next + next_random(s) % s->period;
    s->next += s->period;
    if (now > due + LATE_PERIODS * s->period) {
        uint64_t missed = (now - due) / s->period;
        s->facts->late += missed;
        s->next += missed * s->period;
        due += missed * s->period;
    }
    uint64_t rest = rest_until(s, now);
    if (rest > now && due < rest) {
        uint64_t missed = (rest - due + s->period - 1) / s->period;
        s->facts->late += missed;
        s->next += missed * s->period;
        due += missed * s->period;
    }
    if (due < now + SHORT_NS)
        return 0;
    int r = sleep_until(s, due);
    now = pb_now_ns();
    if (r == 0 && now > due) {
        s->behind_ns += now - due;
        s->sleeps++;
    }
    return r;
}

static pid_t parent_of(pid_t pid)
{
    char text[512];

    if (pb_proc_read(pid, "stat", text, sizeof(text)) <= 0)
        return 0;
    const char *p = strrchr(text, ')');
    return p && p[1] == ' ' && p[2] ? (pid_t)strtol(p + 3, NULL, 10) : 0;
}

/* Attaches new children of the watched processes; grandchildren follow the next time. A child that cannot be
 * opened (not Python yet, gone again) is tried again then. */
static void attach_children(struct pb_sampler *s, uint64_t now)
{
    char label[32];

    if (!s->options.subprocesses || now < s->next_children)
        return;
    s->next_children = now + CHILDREN_NS;
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;
        if (pid && !pb_sampler_watches(s, pid) && pb_sampler_watches(s, parent_of(pid))) {
            snprintf(label, sizeof(label), "pid %d", (int)pid);
            pb_sampler_attach(s, pid, label, -1, NULL);
        }
    }
    if (dir)
        closedir(dir);
}

/* The part of a tick for one process when there are several; 0: unlimited. */
static uint64_t turn_ns(const struct pb_sampler *s)
{
    if (s->n < 2)
        return 0;
    uint64_t share = (s->period > TURN_NS ? s->period : TURN_NS) / s->n;
    return share > TURN_MIN_NS ? share : TURN_MIN_NS;
}

static void drop_ended_threads(struct pb_process_watch *w)
{
    for (size_t i = 0; i < w->n;) {
        if (!w->threads[i].ended) {
            i++;
            continue;
        }
        pb_watch_drop(w, i);
        w->lost_one = true;
        w->next_count = 0;
    }
}

/* Samples all threads of a process, first those that the last turn did not reach. Threads not reached are
 * refused. sub: only those in sub-interpreters, or only the others. */
static void sample_threads(struct pb_sampler *s, struct pb_process_watch *w, uint64_t now, uint64_t until,
                           bool sub)
{
    size_t n = w->n, first = n ? w->first % n : 0;

    for (size_t i = 0; i < n; i++) {
        size_t k = (first + i) % n;
        struct pb_watched *t = &w->threads[k];
        if (w->shared && (t->python && t->py.interp) != sub)
            continue;
        bool over = until && pb_now_ns() > until;
        if ((over || w->stops_left_ns == 0) && !w->next_first)
            w->next_first = k ? k : n;
        if (over && t->state != PB_WATCH_SETTLED)
            continue;
        if (pb_watch_sample(s, w, t, now) == -ESRCH)
            t->ended = true;
    }
}

static void take_turn(struct pb_sampler *s, struct pb_process_watch *w, uint64_t now)
{
    uint64_t turn = turn_ns(s), until = turn ? pb_now_ns() + turn : 0;

    w->stops_left_ns = STOPS_NS;
    w->next_first = 0;
    if (w->shared)
        sample_threads(s, w, now, until, true);
    sample_threads(s, w, now, until, false);
    w->first = w->next_first;
    drop_ended_threads(w);
}

int pb_sampler_tick(struct pb_sampler *s)
{
    uint64_t now = pb_now_ns();
    int alive = 0;

    s->facts->ticks++;
    s->instant = s->facts->ticks + s->facts->late;
    s->ticking = true;
    s->sparing = pb_sampler_threads(s) * s->options.rate > LOOKS_A_SECOND;
    attach_children(s, now);
    for (size_t i = 0; i < s->n; i++) {
        struct pb_process_watch *w = s->processes[i];
        if (!w->ended)
            pb_watch_refresh(s, w, now);
        if (!w->ended)
            take_turn(s, w, now);
        alive += !w->ended;
    }
    s->ticking = false;
    pb_sampler_forget_ended(s);
    s->facts->duration_ns = pb_now_ns() - s->start;
    return alive;
}

void pb_sampler_sum_up(struct pb_sampler *s)
{
    uint64_t now = pb_now_ns();

    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->processes[i]->n; k++)
            pb_watch_settle(s, s->processes[i], &s->processes[i]->threads[k], now);
    s->facts->duration_ns = pb_now_ns() - s->start;
}

unsigned pb_sampler_left(const struct pb_sampler *s)
{
    return s->left;
}

unsigned pb_sampler_threads(const struct pb_sampler *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += s->processes[i]->n;
    return (unsigned)n;
}
