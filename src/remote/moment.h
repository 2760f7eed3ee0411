/* moment: proof that one thread of another process did not run while we read its memory.
 *
 * A stack read from a running thread is a mixture of moments. So a reading is framed by pb_moment_begin and
 * pb_moment_end, and counts only when end says 0. In the order they are tried, each only where allowed:
 *   asleep   the kernel says it is off its CPU (/proc/PID/task/TID/syscall), and it was not scheduled in
 *            since (the count of time slices in schedstat is the same at the end). Also true of one that is
 *            stopped.
 *   pinned   it would run, but we run on the CPU it belongs to, and it was not scheduled in since: it was
 *            preempted by us. Moves the calling thread to that CPU; its affinity is the caller's to restore.
 *            The same is proved without moving where it waits for any CPU (pb_moment_ready).
 *   stopped  by ptrace, this one thread, for tens of microseconds (remote/trace.h): its signals are handed
 *            on, and its system calls go on. Where a stop would make a wait of its own longer it is read
 *            asleep instead, also when that way was not asked for. If we die, the kernel lets the thread go
 *            on.
 *
 * Caller-owned; begin, end and close come from one thread of ours (ptrace wants that). Does not allocate; a
 * few short reads of /proc through descriptors kept open.
 *
 * Without schedstat (a kernel built without it, a /proc that hides it) the switches in status are counted
 * instead: a thread that is off its CPU before and after, and was not switched out in between, did not run.
 * The pinned way needs the time slices and is refused then. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_source;

enum pb_way {
    PB_WAY_ASLEEP = 1,
    PB_WAY_PINNED = 2,
    PB_WAY_STOPPED = 4,
    PB_WAY_DEAD = 8,         /* a core file: nothing moves */
    PB_WAY_INTERRUPTED = 16, /* no moment: the copy was made in an interrupt (pb_py_glance) */
};

struct pb_moment {
    pid_t pid, tid; /* in our pid namespace */
    pid_t ns_tid;   /* in its own; used with `through` */
    struct pb_source
        *through; /* asked about the thread where /proc is not readable (an agent); NULL: /proc */
    int schedstat_fd, syscall_fd, stat_fd, status_fd;
    uint64_t within_ns; /* how long a stop is waited for; the caller's to change */
    bool stopped;
    bool dead;       /* of a core: always PB_WAY_DEAD */
    int signal;      /* to hand on when it goes on */
    int pinned_cpu;  /* -1: not pinned by us */
    enum pb_way way; /* of the moment that is open, or was last */
    uint64_t slices, run_ns;
    uint64_t known_waits; /* how often it had given up its CPU when it was last seen outside of a wait */
    uint64_t clock_ns;    /* with `through`: of its own clock */
    bool by_clock;        /* that clock is the proof */
    unsigned comparisons;
    bool counts_agree; /* its time slices were as many as its switches when it was surely off its CPU */
    unsigned looks;    /* with `through`: how often a thread that runs is looked at; the caller's to change */
    /* Of the last moment that was PB_WAY_ASLEEP, and of a core: */
    int syscall; /* number; -1: none (a page fault) */
    uint64_t syscall_args[6];
    uint64_t sp, pc;
};

/* -ESRCH: no such thread; -EACCES, -EPERM: not ours. */
int pb_moment_open(pid_t pid, pid_t tid, struct pb_moment *ret);
/* The same for many threads of one process; tasks: its /proc/PID/task, open; -1: not. */
int pb_moment_open_in(int tasks, pid_t pid, pid_t tid, struct pb_moment *ret);
void pb_moment_close(struct pb_moment *m);

/* Starts a moment by the first of the allowed ways (a set of enum pb_way) that this thread permits now.
 * Returns the way. -EAGAIN: none of them (it runs, and stopping is not allowed, or it changes too fast);
 * -ESRCH: it ended; -EPERM: it may not be traced, or another tracer has it; -ETIMEDOUT, -EBUSY: it did not
 * stop. */
int pb_moment_begin(struct pb_moment *m, unsigned ways);

/* Ends it and lets the thread go on where it was stopped. 0: what was read in between is of one moment.
 * -EAGAIN: it ran meanwhile, throw the reading away. Must be called after every begin that returned a way. */
int pb_moment_end(struct pb_moment *m);

/* Begins a moment, calls read and ends it, until a reading is proved: it is called again whenever the thread
 * ran meanwhile, or read itself said -EAGAIN. A way that failed a few times is not tried any more. *ret_way:
 * of the last reading. Returns what read returned, or the first error of begin and end; -EAGAIN: nothing
 * could be proved. -ETIMEDOUT of read ends it. */
int pb_moment_read(struct pb_moment *m, unsigned ways, int (*read)(void *arg), void *arg,
                   enum pb_way *ret_way);

/* After a begin that said -EAGAIN: whether the thread is off its CPU and waits for nothing but one. Then a
 * moment (PB_WAY_PINNED) has begun. It was given a CPU as often as it lost one: that is off its CPU, and the
 * end proves that it stayed so. Known only of threads that were once seen asleep or stopped. */
bool pb_moment_ready(struct pb_moment *m);

/* True: we may know whether the thread sleeps, so that a begin which found it awake says something of it. */
bool pb_moment_knows_sleep(const struct pb_moment *m);

/* True: the kernel does not say how often a thread was given a CPU. */
bool pb_moment_without_slices(const struct pb_moment *m);

/* "asleep", "pinned", "stopped", "dead". */
const char *pb_way_name(enum pb_way way);
