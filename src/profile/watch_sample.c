/* watch_sample: one sample of one thread; see watch.h. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profile/watch.h"
#include "remote/threads.h"

#define CODES_MAX (1u << 20)

static uint32_t function_of(struct pb_sampler *s, struct pb_process_watch *w, const struct pb_py_code *code)
{
    struct pb_code_map *map = &w->codes;

    if (code->id >= map->cap && code->id < CODES_MAX) {
        size_t cap = map->cap ? map->cap : 512;
        while (cap <= code->id)
            cap *= 2;
        uint32_t *more = reallocarray(map->at, cap, sizeof(*more));
        if (!more)
            return PB_PROFILE_NONE;
        for (size_t i = map->cap; i < cap; i++)
            more[i] = 0;
        map->at = more;
        map->cap = cap;
    }
    if (code->id < map->cap && map->at[code->id])
        return map->at[code->id] - 1;
    uint32_t function = pb_profile_function(s->profile, PB_FRAME_PYTHON, code->qualname, code->file);
    if (code->id < map->cap && function != PB_PROFILE_NONE)
        map->at[code->id] = function + 1;
    return function;
}

uint32_t pb_python_node(struct pb_sampler *s, struct pb_process_watch *w, uint32_t parent, size_t i)
{
    const struct pb_py_frame *f = &s->stack.at[i];
    uint32_t function = function_of(s, w, f->code);

    if (function == PB_PROFILE_NONE)
        return PB_PROFILE_NONE;
    return pb_profile_node(s->profile, parent, pb_profile_frame(s->profile, function, pb_py_line(w->py, f)));
}

/* Outermost first. A stack for which there is no room is cut there. */
static uint32_t python_stack(struct pb_sampler *s, struct pb_process_watch *w, bool *ret_truncated)
{
    uint32_t node = PB_PROFILE_ROOT;

    *ret_truncated = s->stack.truncated;
    for (size_t i = s->stack.n; i > 0; i--) {
        uint32_t next = pb_python_node(s, w, node, i - 1);
        if (next == PB_PROFILE_NONE) {
            *ret_truncated = true;
            break;
        }
        node = next;
    }
    return node;
}

static uint32_t wait_node(struct pb_sampler *s, uint32_t node, const struct pb_moment *m, char state)
{
    const char *name = m->syscall >= 0 ? pb_syscall_name(m->syscall) : "the kernel";
    char text[64];

    if (state == 'T')
        snprintf(text, sizeof(text), "[stopped by a signal]");
    else if (name)
        snprintf(text, sizeof(text), "[waiting in %s]", name);
    else
        snprintf(text, sizeof(text), "[waiting in system call %d]", m->syscall);
    uint32_t function = pb_profile_function(s->profile, PB_FRAME_WAIT, text, "");
    uint32_t next = pb_profile_node(s->profile, node, pb_profile_frame(s->profile, function, 0));
    return next == PB_PROFILE_NONE ? node : next;
}

/* What is read within the moment, besides the Python stack. */
struct reading {
    struct pb_sampler *s;
    struct pb_process_watch *w;
    struct pb_watched *t;
    bool gil;
};

static int capture_native(struct reading *r)
{
    const struct pb_moment *m = &r->t->moment;

    if (!r->w->native)
        return 0;
    if (m->way == PB_WAY_ASLEEP)
        return pb_native_copy_asleep(r->w->native, r->t->tid, m->pc, m->sp, &r->s->capture);
    return pb_native_copy(r->w->native, r->t->tid, &r->s->capture);
}

static int read_more(struct reading *r)
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
static char *read_stat(struct pb_process_watch *w, struct pb_watched *t, char text[STAT_SIZE])
{
    if (t->stat_fd < 0) {
        snprintf(text, STAT_SIZE, "/proc/%d/task/%d/stat", (int)w->pid, (int)t->tid);
        t->stat_fd = open(text, O_RDONLY | O_CLOEXEC);
    }
    ssize_t n = t->stat_fd < 0 ? -1 : pread(t->stat_fd, text, STAT_SIZE - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strrchr(text, ')');
}

/* The CPU that a thread runs on, ran on last or waits for: field 39. */
static int cpu_of(struct pb_process_watch *w, struct pb_watched *t)
{
    char text[STAT_SIZE], *p = read_stat(w, t, text);

    for (int field = 2; p && field < 39; field++)
        p = strchr(p + 1, ' ');
    return p ? (int)strtol(p, NULL, 10) : -ESRCH;
}

#define WINDOW     128
#define MISSES_MAX 2 /* of as many glances: whoever falls back on another way samples a later instant */

static int note_miss(struct pb_watched *t)
{
    t->misses++;
    return -ENODATA;
}

/* The stack of a thread that runs, without a stop. -EAGAIN: it waits for the CPU that it belongs to, and has
 * not run since its moment began. A thread whose stacks the copy often does not hold is left to the other
 * ways for a while: those it does hold would be more of its samples than of its time. */
static int glance(struct reading *r)
{
    struct pb_watched *t = r->t;
    int result = -EAGAIN;

    if (!r->w->glance || !t->python || !t->named)
        return -ENODATA;
    if (++t->glances > WINDOW) {
        t->misses = t->misses > MISSES_MAX && t->misses <= WINDOW ? WINDOW + 1 : 0;
        t->glances = 0;
    }
    if (t->misses > WINDOW)
        return -ENODATA;
    if (t->last_cpu >= 0)
        result = pb_py_glance(r->w->glance, &t->py, t->last_cpu, &r->s->stack, &r->gil);
    if (result == -EAGAIN) {
        t->last_cpu = cpu_of(r->w, t);
        if (t->last_cpu < 0) /* we do not know where it is: that is no proof that it waits */
            return -ENODATA;
        if (t->last_cpu != sched_getcpu())
            result = pb_py_glance(r->w->glance, &t->py, t->last_cpu, &r->s->stack, &r->gil);
    }
    return result == -ENODATA ? note_miss(t) : result;
}

/* Leaves the CPU that we have to a thread that is to run or to stop there. */
static void step_aside(struct pb_sampler *s, int cpu)
{
    cpu_set_t others = s->allowed;

    CPU_CLR((size_t)cpu, &others);
    if (CPU_COUNT(&others) && sched_setaffinity(0, sizeof(others), &others) == 0)
        (void)sched_setaffinity(0, sizeof(s->allowed), &s->allowed);
    s->cpu = -1;
}

#define ASIDE_TICKS 16 /* where every CPU has a thread of the target there is no better place */

/* We were woken on the CPU of a thread that runs, and will be again: the kernel leaves us where we were. */
static void make_way(struct reading *r)
{
    struct pb_sampler *s = r->s;

    int cpu = sched_getcpu();

    if (cpu != r->t->last_cpu || (s->options.no_stop && !r->w->glance) || s->facts->ticks < s->next_aside)
        return;
    s->next_aside = s->facts->ticks + ASIDE_TICKS;
    step_aside(s, cpu);
}

/* Begins a moment. A thread that is not asleep may be waiting for a CPU, the very one that we have among
 * others: then it does not run, and since its count of time slices was read before, the end of the moment
 * proves that it did not meanwhile. To stop it there would only make us wait for it. Registers are known of a
 * stopped thread only.
 */
static int begin(struct reading *r, unsigned ways)
{
    struct pb_moment *m = &r->t->moment;

    int way = ways & PB_WAY_ASLEEP ? pb_moment_begin(m, PB_WAY_ASLEEP) : -EAGAIN;
    if (way != -EAGAIN)
        return way;
    int seen = ways & PB_WAY_INTERRUPTED ? glance(r) : -ENODATA;
    if (seen == 0 || seen == -EAGAIN)
        return (int)(m->way = seen == 0 ? PB_WAY_INTERRUPTED : PB_WAY_PINNED);
    ways &= ~(unsigned)PB_WAY_INTERRUPTED;
    int cpu = r->t->last_cpu = cpu_of(r->w, r->t);
    if (cpu >= 0 && cpu == sched_getcpu()) {
        if (!r->w->native && ways & PB_WAY_ASLEEP)
            return (int)(m->way = PB_WAY_PINNED);
        step_aside(r->s, cpu);
    }
    /* It may have gone to wait since: then it need not be stopped. */
    return ways & ~(unsigned)PB_WAY_ASLEEP ? pb_moment_begin(m, ways) : -EAGAIN;
}

#define TRIES                                                                                                \
    20 /* of a moment that was none, or that hit a place between two stores that belong together             \
        */

/* Tries the ways in order until one proves what was read. */
static int read_thread(struct reading *r, unsigned ways)
{
    struct pb_sampler *s = r->s;
    struct pb_watched *t = r->t;
    int result = -EAGAIN;

    s->stack.n = 0;
    s->stack.truncated = false;
    for (int i = 0; i < TRIES && result == -EAGAIN; i++) {
        t->moment.pinned_cpu = s->cpu; /* where we are pinned is one fact for all threads */
        int way = begin(r, i < TRIES / 2 || !(ways & PB_WAY_STOPPED) ? ways : PB_WAY_STOPPED);
        s->cpu = t->moment.pinned_cpu;
        if (way < 0)
            return way;
        if (way == PB_WAY_INTERRUPTED)
            return 0;
        result = t->python ? pb_py_stack(r->w->py, &t->py, &s->stack) : 0;
        if (result == 0)
            result = read_more(r);
        int ended = pb_moment_end(&t->moment);
        /* It woke up while we read: what we have is worth nothing, nor is an error in it. */
        if (ended < 0)
            result = ended;
        s->stack.way = (enum pb_way)way;
    }
    return result;
}

/* Whether a thread that was read off its CPU waits for something. Outside of a system call it may also have
 * been on its way into or out of a stop of ours, which is no waiting of its own. */
static bool waits(struct reading *r, char *ret_state)
{
    char text[STAT_SIZE];

    *ret_state = 'S';
    if (r->t->moment.syscall >= 0)
        return true;
    const char *p = read_stat(r->w, r->t, text);
    *ret_state = p && p[1] == ' ' ? p[2] : 'R';
    return strchr("SDT", *ret_state) != NULL;
}

static int make_node(struct reading *r, uint32_t *ret)
{
    struct pb_sampler *s = r->s;
    struct pb_watched *t = r->t;
    bool guessed = false;

    t->apart = false;
    if (!r->w->native) {
        *ret = python_stack(s, r->w, &t->truncated);
        return 0;
    }
    int result = pb_native_node(s, r->w, t->python, ret, &guessed, &t->truncated, &t->apart);
    /* Of a thread that sleeps some registers are not known; stopped, they are. */
    if (result == 0 && guessed && s->stack.way == PB_WAY_ASLEEP && s->ways & PB_WAY_STOPPED) {
        result = read_thread(r, PB_WAY_STOPPED);
        if (result == 0)
            result = pb_native_node(s, r->w, t->python, ret, &guessed, &t->truncated, &t->apart);
    }
    return result;
}

static void count_way(struct pb_sampler *s, enum pb_way way, unsigned n)
{
    s->facts->asleep += way == PB_WAY_ASLEEP ? n : 0;
    s->facts->interrupted += way == PB_WAY_INTERRUPTED ? n : 0;
    s->facts->pinned += way == PB_WAY_PINNED ? n : 0;
    s->facts->stopped += way == PB_WAY_STOPPED ? n : 0;
    s->facts->dead += way == PB_WAY_DEAD ? n : 0;
}

/* The instants that a thread's time has not been counted for, which is up to now from here on. */
static uint32_t take_instants(struct pb_sampler *s, struct pb_watched *t)
{
    uint64_t n = s->instant - t->counted;

    if (s->warming) /* nothing counts yet */
        return 0;
    t->counted = s->instant;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void count(struct pb_sampler *s, struct pb_watched *t, enum pb_way way, uint64_t now)
{
    const struct pb_sampler_options *o = &s->options;
    uint32_t n = take_instants(s, t);

    if (t->node != t->last_node || t->at != t->last_at || !t->moved) {
        t->moved = now;
        t->window_from = 0;
    }
    t->last_node = t->node;
    t->last_at = t->at;
    /* A thread that runs no Python code at all is no sample of a Python profile. */
    if (t->node == PB_PROFILE_ROOT || s->warming)
        return;
    if ((o->cpu && t->flags & PB_SAMPLE_WAITING) || (o->gil && !(t->flags & PB_SAMPLE_GIL))) {
        s->facts->outside += n;
        return;
    }
    count_way(s, way, n);
    s->facts->truncated += t->truncated ? n : 0;
    s->facts->apart += t->apart ? n : 0;
    const struct pb_sample sample = {now, t->thread, t->node, t->flags, n};
    if (pb_sampler_emit(s, &sample) < 0)
        s->facts->failed += n;
}

#define STILL       32 /* samples in a row after which a thread is not looked at every time */
#define PENDING_MAX 2

/* Whether it is where it was; then it was on every tick since. Otherwise what it did on those is not known,
 * and they are counted with the sample that is taken next. */
static int look_again(struct pb_sampler *s, struct pb_watched *t, uint64_t now)
{
    int same = pb_moment_end(&t->moment);
    t->pending = 0;
    if (same == 0) {
        t->still++;
        count(s, t, PB_WAY_ASLEEP, now);
        return 0;
    }
    t->still = 0;
    t->woke++;
    pb_profile_mark_ran(s->profile, t->thread);
    return same;
}

void pb_watch_settle(struct pb_sampler *s, struct pb_watched *t, uint64_t now)
{
    if (!t->settled || !t->pending)
        return;
    if (look_again(s, t, now) < 0) /* it moved, and no sample comes after this one */
        s->facts->refused += take_instants(s, t);
}

int pb_watch_sample(struct pb_sampler *s, struct pb_process_watch *w, struct pb_watched *t, uint64_t now)
{
    struct reading r = {s, w, t, false};

    if (t->settled) {
        /* That it has not run is proved for all the time since the last look: a thread that has long been
         * still is not looked at on every tick. */
        if (s->sparing && t->still >= STILL && t->pending < PENDING_MAX && !s->warming) {
            t->pending++;
            return 0;
        }
        int same = look_again(s, t, now);
        if (same == 0 || same == -ESRCH)
            return same;
    }
    t->settled = false;
    int result = read_thread(&r, s->ways);
    bool asleep = result == 0 && s->stack.way == PB_WAY_ASLEEP;
    if (result == 0)
        result = make_node(&r, &t->node);
    if (result < 0) {
        /* It runs and may not be stopped, or was not given a CPU to stop on in time. */
        bool refused = result == -EAGAIN || result == -ETIMEDOUT || result == -EBUSY;
        uint32_t n = take_instants(s, t);
        s->facts->refused += refused ? n : 0;
        s->facts->failed += !refused && result != -ESRCH ? n : 0;
        return result;
    }
    t->at = t->python && s->stack.n ? s->stack.at[0].at : 0;
    char state;
    bool waiting = asleep && waits(&r, &state);
    t->flags = (waiting ? PB_SAMPLE_WAITING : 0) | (r.gil ? PB_SAMPLE_GIL : 0);
    if (waiting && t->node != PB_PROFILE_ROOT && !s->options.no_waits)
        t->node = wait_node(s, t->node, &t->moment, state);
    t->settled = waiting && s->stack.way == PB_WAY_ASLEEP;
    if (!waiting && !s->warming)
        pb_profile_mark_ran(s->profile, t->thread);
    count(s, t, s->stack.way, now);
    if (s->stack.way == PB_WAY_PINNED)
        make_way(&r);
    return 0;
}
