/* watch_sample: one sample of one thread: the actions of the steps in steps.h; see watch.h. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "profile/watch.h"
#include "remote/threads.h"

#define TRIES                                                                                                \
    20 /* of a moment that was none, or that hit a place between two stores that belong together             \
        */

#define TRIES_THROUGH 3 /* the same through the agent, which takes longer */

/* A sample being taken. */
struct thread_reading {
    struct pb_sampler *s;
    struct pb_process_watch *w;
    struct pb_watched *t;
    uint64_t now;
    unsigned ways; /* that are still allowed */
    int way;       /* of the open moment, or the last one */
    int result;    /* of reading the memory */
    unsigned tries;
    bool same; /* it has not moved */
    bool gil;
    bool asleep; /* it was asleep at the first read */
    bool exact;  /* it was read without all registers, and must be stopped for them */
    bool guess;  /* it could not be stopped: the guessed stack is accepted */
};

static int capture_native(struct thread_reading *r)
{
    const struct pb_moment *m = &r->t->moment;

    if (!r->w->native)
        return 0;
    if (m->way == PB_WAY_ASLEEP)
        return pb_native_copy_asleep(r->w->native, r->t->tid, m->pc, m->sp, &r->s->capture);
    return pb_native_copy(r->w->native, r->t->tid, &r->s->capture);
}

static int read_more(struct thread_reading *r)
{
    struct pb_watched *t = r->t;
    char name[PB_PY_NAME_MAX];

    if (!t->python)
        return capture_native(r);
    if (r->s->options.gil || r->s->options.with_gil)
        r->gil = pb_py_holds_gil(r->w->py, &t->py);
    if (!t->named) {
        t->named = true;
        if (pb_py_thread_name(r->w->py, &t->py, &r->s->stack, name, sizeof(name)) == 0)
            pb_profile_name_thread(r->s->profile, t->thread, name);
    }
    return capture_native(r);
}

#define STAT_SIZE 1024

/* The stat file of a thread from the end of its name on; NULL: it is gone. */
static char *read_stat(struct pb_watched *t, char text[STAT_SIZE])
{
    return pb_moment_stat(&t->moment, text, STAT_SIZE) > 0 ? strrchr(text, ')') : NULL;
}

/* The CPU that a thread runs on, ran on last or waits for: field 39. */
static int cpu_of(struct pb_watched *t)
{
    char text[STAT_SIZE], *p = read_stat(t, text);

    for (int field = 2; p && field < 39; field++)
        p = strchr(p + 1, ' ');
    return p ? (int)strtol(p, NULL, 10) : -ESRCH;
}

#define WINDOW          128
#define MISSES_MAX      2 /* of as many hits: the other ways sample a later instant, a bias */
#define PAUSE_DOUBLINGS 3

/* A stack that the copy does not hold is left to the other ways for a while, twice as long each time: a
 * glance in vain makes the stop after it 20 to 40 us late, and the stacks that do fit would be counted too
 * often. */
static int note_miss(struct pb_watched *t)
{
    if (++t->misses > MISSES_MAX) {
        t->pause = WINDOW << (t->pauses < PAUSE_DOUBLINGS ? t->pauses++ : PAUSE_DOUBLINGS);
        t->hits = t->misses = 0;
    }
    return -ENODATA;
}

static int note_hit(struct pb_watched *t)
{
    if (++t->hits > WINDOW)
        t->hits = t->misses = t->pauses = 0;
    return 0;
}

/* Copies the stack of a running thread without a stop. -EAGAIN: it waits for a CPU, and has not run since its
 * moment began. */
static int copy_running_stack(struct thread_reading *r)
{
    struct pb_watched *t = r->t;
    int result = -EAGAIN;

    if (!r->w->glance || !t->python || !t->named)
        return -ENODATA;
    if (t->last_cpu >= 0)
        result = pb_py_glance(r->w->glance, &t->py, t->last_cpu, &r->s->stack, &r->gil);
    if (result == -EAGAIN) {
        t->last_cpu = cpu_of(t);
        if (t->last_cpu < 0) /* its CPU is not known, so it is not proved to be waiting */
            return -ENODATA;
        if (t->last_cpu != sched_getcpu())
            result = pb_py_glance(r->w->glance, &t->py, t->last_cpu, &r->s->stack, &r->gil);
    }
    return result == -ENODATA ? note_miss(t) : result == 0 ? note_hit(t) : result;
}

/* Moves us to another CPU, for a thread that is to run or to stop on ours. */
static void leave_cpu(struct pb_sampler *s, int cpu)
{
    cpu_set_t others = s->allowed;

    CPU_CLR((size_t)cpu, &others);
    if (CPU_COUNT(&others) && sched_setaffinity(0, sizeof(others), &others) == 0)
        (void)sched_setaffinity(0, sizeof(s->allowed), &s->allowed);
    s->cpu = -1;
}

#define ASIDE_TICKS 16 /* if every CPU has a thread of the target, no CPU is better */

/* We were woken on the CPU of a running thread, and would be again: the kernel leaves us there. */
static void leave_cpu_of_thread(struct thread_reading *r)
{
    struct pb_sampler *s = r->s;

    int cpu = sched_getcpu();

    if (cpu != r->t->last_cpu || (s->options.no_stop && !r->w->glance) || s->facts->ticks < s->next_aside)
        return;
    s->next_aside = s->facts->ticks + ASIDE_TICKS;
    leave_cpu(s, cpu);
}

/* ---- The steps. Each returns its outcome; pb_step_next says what follows. ---- */

/* Whether the thread has not moved: then it was at the same place on every tick since. Otherwise those ticks
 * are counted with the next sample. */
static enum pb_outcome look_again(struct thread_reading *r)
{
    struct pb_watched *t = r->t;

    int same = pb_moment_end(&t->moment);
    t->pending = 0;
    if (same == 0) {
        t->still++;
        r->same = true;
        return PB_OUTCOME_YES;
    }
    t->still = 0;
    t->woke++;
    pb_profile_mark_ran(r->s->profile, t->thread);
    return same == -ESRCH ? PB_OUTCOME_GONE : PB_OUTCOME_NO;
}

static enum pb_outcome find_asleep(struct thread_reading *r)
{
    if (!(r->ways & PB_WAY_ASLEEP))
        return PB_OUTCOME_NO;
    r->way = pb_moment_begin(&r->t->moment, PB_WAY_ASLEEP);
    if (r->way > 0)
        return PB_OUTCOME_YES;
    /* It runs, or waits only for a CPU. Noted even if no way is left to read its stack: a thread that is
     * never read may still have run. */
    if (r->way == -EAGAIN && !r->s->warming && pb_moment_knows_sleep(&r->t->moment))
        pb_profile_mark_ran(r->s->profile, r->t->thread);
    return r->way == -EAGAIN ? PB_OUTCOME_NO : r->way == -ESRCH ? PB_OUTCOME_GONE : PB_OUTCOME_ERROR;
}

static enum pb_outcome interrupt_it(struct thread_reading *r)
{
    if (!(r->ways & PB_WAY_INTERRUPTED))
        return PB_OUTCOME_NO;
    if (r->t->pause > 0) {
        r->t->pause--;
        return PB_OUTCOME_PAUSED;
    }
    int seen = copy_running_stack(r);
    if (seen != 0 && seen != -EAGAIN)
        return PB_OUTCOME_NO;
    r->way = (int)(r->t->moment.way = seen == 0 ? PB_WAY_INTERRUPTED : PB_WAY_PINNED);
    return seen == 0 ? PB_OUTCOME_YES : PB_OUTCOME_OFF_CPU;
}

/* A thread that is not asleep may be waiting for a CPU, perhaps ours: then it does not run, and since its
 * count of time slices was read before, the end of the moment proves that it did not meanwhile. Stopping it
 * would only make us wait for it. Native stacks need the registers, which only a stop gives. */
static enum pb_outcome find_preempted(struct thread_reading *r)
{
    struct pb_watched *t = r->t;
    bool allowed = !r->w->native && r->ways & PB_WAY_ASLEEP && !pb_moment_without_slices(&t->moment);
    int cpu = t->last_cpu = cpu_of(t);
    bool ours = cpu >= 0 && cpu == sched_getcpu();

    /* A read through the agent makes us sleep, and the thread would run. */
    if (allowed && ours && !t->moment.through)
        t->moment.way = PB_WAY_PINNED;
    else if (!allowed || !pb_moment_ready(&t->moment)) {
        if (ours && !t->moment.through)
            leave_cpu(r->s, cpu);
        return PB_OUTCOME_NO;
    }
    r->way = PB_WAY_PINNED;
    return PB_OUTCOME_YES;
}

#define STOP_WITHIN_NS (10 * PB_NS_PER_MS) /* other threads wait meanwhile */
#define STOP_SLOW_NS   (PB_NS_PER_MS / 2)  /* a slower stop is counted against the process */
#define AVOID_FIRST_NS                                                                                       \
    (20 *                                                                                                    \
     PB_NS_PER_MS) /* for how long a thread that did not stop is not stopped again                      \
                         */
#define AVOID_DOUBLINGS 4

/* Whether a stop can work: a thread in an uninterruptible wait would not stop. */
static bool may_stop(struct thread_reading *r)
{
    char text[STAT_SIZE];

    if (r->now < r->t->avoid_until || r->w->stops_left_ns == 0)
        return false;
    const char *p = r->exact ? read_stat(r->t, text) : NULL;
    return !p || p[1] != ' ' || p[2] != 'D';
}

/* Once can be chance: on a busy machine any thread may get no CPU for 10 ms. */
static void note_late(struct thread_reading *r)
{
    struct pb_watched *t = r->t;

    if (t->lates++ > 0) {
        unsigned doublings = t->lates - 2 < AVOID_DOUBLINGS ? t->lates - 2 : AVOID_DOUBLINGS;
        t->avoid_until = pb_now_ns() + ((uint64_t)AVOID_FIRST_NS << doublings);
    }
}

static enum pb_outcome no_stop(struct thread_reading *r, enum pb_outcome otherwise)
{
    if (!r->exact)
        return otherwise;
    r->exact = false;
    r->guess = true;
    r->ways = r->s->ways;
    return PB_OUTCOME_KEEP;
}

/* Stops the thread, unless it has gone to sleep since. */
static enum pb_outcome stop_thread(struct thread_reading *r)
{
    struct pb_moment *m = &r->t->moment;
    struct pb_sampler *s = r->s;
    /* Without a stop (through the agent, or without the right to trace) its CPU is taken instead. That leaves
     * the registers unknown, which native stacks need. */
    bool no_stops = m->through || (r->w->stop_error && !r->w->native);
    unsigned ways = no_stops ? PB_WAY_PINNED : r->ways & ~(unsigned)PB_WAY_INTERRUPTED;

    if (ways & PB_WAY_STOPPED && !may_stop(r))
        return no_stop(r, PB_OUTCOME_NO);
    if (!(ways & ~(unsigned)PB_WAY_ASLEEP))
        return no_stop(r, PB_OUTCOME_NO);
    uint64_t began = pb_now_ns();
    m->within_ns = r->w->stops_left_ns < STOP_WITHIN_NS ? r->w->stops_left_ns : STOP_WITHIN_NS;
    m->pinned_cpu = s->cpu; /* our pinning is the same for all threads */
    r->way = pb_moment_begin(m, ways);
    s->cpu = m->pinned_cpu;
    uint64_t took = pb_now_ns() - began;
    if (took > STOP_SLOW_NS)
        r->w->stops_left_ns -= took < r->w->stops_left_ns ? took : r->w->stops_left_ns;
    if (r->way > 0) {
        r->t->lates = r->way == PB_WAY_STOPPED ? 0 : r->t->lates;
        return PB_OUTCOME_YES;
    }
    switch (r->way) {
    case -ESRCH:
        return PB_OUTCOME_GONE;
    case -ETIMEDOUT: /* it got no CPU to stop on */
        note_late(r);
        return no_stop(r, PB_OUTCOME_LATE);
    case -EPERM:
    case -EACCES:
    case -ENOSYS:
        r->w->stop_error = s->stop_error = r->way;
        return no_stop(r, PB_OUTCOME_NO);
    case -EAGAIN:
    case -EBUSY:
        return no_stop(r, PB_OUTCOME_NO);
    default:
        return PB_OUTCOME_ERROR;
    }
}

static enum pb_outcome read_memory(struct thread_reading *r)
{
    r->result = r->t->python ? pb_py_stack(r->w->py, &r->t->py, &r->s->stack) : 0;
    if (r->result == 0)
        r->result = read_more(r);
    return PB_OUTCOME_YES;
}

static enum pb_outcome prove_it(struct thread_reading *r)
{
    int ended = pb_moment_end(&r->t->moment);

    /* It woke up during the read: neither the data nor an error in it counts. */
    if (ended < 0)
        r->result = ended;
    if (r->result == 0) {
        r->s->stack.way = (enum pb_way)r->way;
        return PB_OUTCOME_YES;
    }
    if (r->result != -EAGAIN)
        return r->result == -ESRCH ? PB_OUTCOME_GONE : PB_OUTCOME_ERROR;
    if (++r->tries >= (r->t->moment.through ? TRIES_THROUGH : TRIES))
        return PB_OUTCOME_NO;
    if (!(r->s->ways & PB_WAY_STOPPED) || (r->tries < TRIES / 2 && !r->exact))
        return PB_OUTCOME_RAN;
    r->ways = PB_WAY_STOPPED;
    return PB_OUTCOME_RESTLESS;
}

static enum pb_outcome describe_it(struct thread_reading *r)
{
    struct pb_sampler *s = r->s;
    struct pb_watched *t = r->t;
    bool guessed = false;

    r->asleep = r->asleep || s->stack.way == PB_WAY_ASLEEP;
    t->apart = false;
    if (!r->w->native) {
        t->node = pb_python_stack(s, r->w, &t->truncated);
        return PB_OUTCOME_YES;
    }
    if (pb_native_node(s, r->w, t->python, &t->node, &guessed, &t->truncated, &t->apart) < 0)
        return PB_OUTCOME_ERROR;
    /* Some registers of a sleeping thread are not known; a stop gives them. */
    if (!guessed || r->guess || r->exact || s->stack.way != PB_WAY_ASLEEP || !(s->ways & PB_WAY_STOPPED))
        return PB_OUTCOME_YES;
    r->exact = true;
    r->ways = PB_WAY_STOPPED;
    return PB_OUTCOME_GUESSED;
}

/* Whether a thread that was read off its CPU waits for something. Outside of a system call it may have been
 * entering or leaving a stop of ours, which does not count. */
static bool waits_for_event(struct thread_reading *r, char *ret_state)
{
    char text[STAT_SIZE];

    *ret_state = 'S';
    if (r->t->moment.syscall >= 0)
        return true;
    const char *p = read_stat(r->t, text);
    *ret_state = p && p[1] == ' ' ? p[2] : 'R';
    return strchr("SDT", *ret_state) != NULL;
}

static void count_way(struct pb_sampler *s, enum pb_way way, unsigned n)
{
    s->facts->asleep += way == PB_WAY_ASLEEP ? n : 0;
    s->facts->interrupted += way == PB_WAY_INTERRUPTED ? n : 0;
    s->facts->pinned += way == PB_WAY_PINNED ? n : 0;
    s->facts->stopped += way == PB_WAY_STOPPED ? n : 0;
    s->facts->dead += way == PB_WAY_DEAD ? n : 0;
}

/* The number of instants not yet counted for the thread; they count from here on. */
static uint32_t count_instants(struct pb_sampler *s, struct pb_watched *t)
{
    uint64_t n = s->instant - t->counted;

    if (s->warming) /* nothing counts yet */
        return 0;
    t->counted = s->instant;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void count_time(struct pb_sampler *s, struct pb_watched *t, enum pb_way way, uint64_t now)
{
    const struct pb_sampler_options *o = &s->options;
    uint32_t n = count_instants(s, t);

    if (t->node != t->last_node || t->at != t->last_at || !t->moved) {
        t->moved = now;
        t->window_from = 0;
    }
    t->last_node = t->node;
    t->last_at = t->at;
    /* A thread without Python code is no sample of a Python profile. */
    if (t->node == PB_PROFILE_ROOT || s->warming)
        return;
    if ((o->cpu && t->flags & PB_SAMPLE_WAITING) || (o->gil && !(t->flags & PB_SAMPLE_GIL))) {
        s->facts->outside += n;
        return;
    }
    t->taken = s->instant;
    count_way(s, way, n);
    s->facts->truncated += t->truncated ? n : 0;
    s->facts->apart += t->apart ? n : 0;
    const struct pb_sample sample = {now, t->thread, t->node, t->flags, n};
    if (pb_sampler_emit(s, &sample) < 0)
        s->facts->failed += n;
}

/* A repeated look counts the same stack as last time. */
static enum pb_outcome count_sample(struct thread_reading *r)
{
    struct pb_sampler *s = r->s;
    struct pb_watched *t = r->t;
    char state;

    if (r->same) {
        count_time(s, t, PB_WAY_ASLEEP, r->now);
        r->asleep = true;
        return PB_OUTCOME_YES;
    }
    t->at = t->python && s->stack.n ? s->stack.at[0].at : 0;
    bool waiting = r->asleep && waits_for_event(r, &state);
    t->flags = (waiting ? PB_SAMPLE_WAITING : 0) | (r->gil ? PB_SAMPLE_GIL : 0);
    if (waiting && t->node != PB_PROFILE_ROOT && !s->options.no_waits)
        t->node = pb_wait_node(s, t->node, &t->moment, state);
    r->asleep = waiting && s->stack.way == PB_WAY_ASLEEP;
    if (!waiting && !s->warming)
        pb_profile_mark_ran(s->profile, t->thread);
    count_time(s, t, s->stack.way, r->now);
    if (s->stack.way == PB_WAY_PINNED)
        leave_cpu_of_thread(r);
    return PB_OUTCOME_YES;
}

static enum pb_outcome (*const do_step[])(struct thread_reading *) = {
    [PB_STEP_LOOK_AGAIN] = look_again,  [PB_STEP_ASLEEP] = find_asleep,
    [PB_STEP_INTERRUPT] = interrupt_it, [PB_STEP_PREEMPTED] = find_preempted,
    [PB_STEP_STOP] = stop_thread,       [PB_STEP_READ] = read_memory,
    [PB_STEP_PROVE] = prove_it,         [PB_STEP_DESCRIBE] = describe_it,
    [PB_STEP_COUNT] = count_sample,
};

/* Runs the steps from the first to an end. */
static enum pb_step take_steps(struct thread_reading *r, enum pb_step step)
{
    FILE *trace = r->s->options.trace;
    uint64_t began = trace ? pb_now_ns() : 0;

    r->s->stack.n = 0;
    r->s->stack.truncated = false;
    if (trace)
        fprintf(trace, "tick %llu thread %d %s:", (unsigned long long)r->s->facts->ticks, (int)r->t->tid,
                pb_watch_state_name(r->t->state));
    while (!pb_step_is_end(step)) {
        enum pb_outcome outcome = do_step[step](r);
        if (trace)
            fprintf(trace, " %s(%s)", pb_step_name(step), pb_outcome_name(outcome));
        step = pb_step_next(step, outcome);
    }
    if (trace)
        fprintf(trace, " = %s, %llu us\n", pb_step_name(step),
                (unsigned long long)((pb_now_ns() - began) / 1000));
    return step;
}

void pb_watch_settle(struct pb_sampler *s, struct pb_process_watch *w, struct pb_watched *t, uint64_t now)
{
    struct thread_reading r = {.s = s, .w = w, .t = t, .now = now, .ways = s->ways};

    if (t->state != PB_WATCH_SETTLED || !t->pending)
        return;
    if (look_again(&r) == PB_OUTCOME_YES)
        (void)count_sample(&r);
    else /* it moved, and no sample follows */
        s->facts->refused += count_instants(s, t);
}

/* Whether the thread was counted on this tick already, by its state in another interpreter. Sub-interpreters
 * come first: a thread runs code there while it is in a call of the main one. */
static bool is_counted(const struct pb_sampler *s, const struct pb_process_watch *w,
                       const struct pb_watched *t)
{
    for (size_t i = 0; w->shared && i < w->n; i++)
        if (w->threads[i].tid == t->tid && &w->threads[i] != t && w->threads[i].taken == s->instant)
            return true;
    return false;
}

#define STILL       32 /* samples in a row after which a thread is looked at less often */
#define PENDING_MAX 2

int pb_watch_sample(struct pb_sampler *s, struct pb_process_watch *w, struct pb_watched *t, uint64_t now)
{
    struct thread_reading r = {.s = s, .w = w, .t = t, .now = now, .ways = s->ways};
    bool settled = t->state == PB_WATCH_SETTLED;

    if (w->shared && !s->warming && is_counted(s, w, t)) {
        (void)count_instants(s, t);
        return 0;
    }
    /* A look proves that the thread has not run since the last one, so a thread that has long been still is
     * not looked at on every tick. */
    if (settled && s->sparing && t->still >= STILL && t->pending < PENDING_MAX && !s->warming && !w->shared) {
        t->pending++;
        return 0;
    }
    enum pb_step end = take_steps(&r, settled ? PB_STEP_LOOK_AGAIN : PB_STEP_ASLEEP);
    t->state = pb_watch_state_next(t->state, end, r.asleep);
    if (end != PB_STEP_TAKEN) {
        uint32_t n = count_instants(s, t);
        s->facts->refused += end == PB_STEP_REFUSED || end == PB_STEP_HELD_UP ? n : 0;
        s->facts->failed += end == PB_STEP_FAILED ? n : 0;
    }
    return end == PB_STEP_ENDED ? -ESRCH : 0;
}
