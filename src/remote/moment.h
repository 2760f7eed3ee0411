/* moment: proof that one thread of another process did not run while we read its memory.
 *
 * A stack read from a running thread is a mixture of moments. So a reading is framed by pb_moment_begin and
 * pb_moment_end, and counts only when end returns 0. The ways, in the order they are tried, each only where
 * allowed:
 *   asleep   the kernel says it is off its CPU (/proc/PID/task/TID/syscall), and it was not scheduled in
 *            since (the count of time slices in schedstat is the same at the end). A stopped thread too.
 *   pinned   it is runnable, but we run on its CPU, and it was not scheduled in since: we preempted it.
 *            Moves the calling thread to that CPU; the caller restores its affinity. The same is proved
 *            without moving where it waits for any CPU (pb_moment_ready).
 *   stopped  by ptrace, this one thread, for tens of microseconds (remote/trace.h): its signals are
 *            delivered, and its system calls continue. If a stop would make its wait longer it is read
 *            asleep instead, even if that way was not asked for. If we die, the kernel resumes it.
 *
 * Caller-owned; begin, end and close come from one thread of ours (required by ptrace). Does not allocate; a
 * few short reads of /proc. Their descriptors are kept open, of all threads together for up to half of what
 * the process may have; of more threads the files are opened for each reading.
 *
 * Without schedstat (a kernel built without it, a /proc that hides it) the switches in status are counted
 * instead: a thread that is off its CPU before and after, and was not switched out in between, did not run.
 * The pinned way needs the time slices and is refused then. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
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
    int tasks;    /* the folder of its files; -1: by the path */
    int schedstat_fd, syscall_fd, stat_fd, status_fd; /* -1: closed, and opened for each reading */
    bool no_schedstat, no_syscall;                    /* those files are not there, or not for us */
    uint64_t within_ns; /* how long to wait for a stop; the caller may change it */
    bool stopped;
    bool dead;       /* of a core file: always PB_WAY_DEAD */
    int signal;      /* delivered when it continues */
    int pinned_cpu;  /* -1: not pinned by us */
    enum pb_way way; /* of the moment that is open, or was last */
    uint64_t slices, run_ns;
    uint64_t known_waits; /* how often it had given up its CPU when last seen outside of a wait */
    uint64_t clock_ns;    /* with `through`: its own CPU clock */
    bool by_clock;        /* that clock is the proof */
    unsigned comparisons;
    bool counts_agree; /* its time slices were as many as its switches when it was surely off its CPU */
    unsigned looks;    /* with `through`: tries for a thread that runs; the caller may change it */
    /* Of the last moment by PB_WAY_ASLEEP, and of a core: */
    int syscall; /* number; -1: none (a page fault) */
    uint64_t syscall_args[6];
    uint64_t sp, pc;
};

/* -ESRCH: no such thread; -EACCES, -EPERM: not ours. */
int pb_moment_open(pid_t pid, pid_t tid, struct pb_moment *ret);
/* The same for many threads of one process; tasks: its /proc/PID/task, open as long as the moment is;
 * -1: not. */
int pb_moment_open_in(int tasks, pid_t pid, pid_t tid, struct pb_moment *ret);
void pb_moment_close(struct pb_moment *m);

/* Starts a moment by the first allowed way (a set of enum pb_way) that is possible now. Returns the way.
 * -EAGAIN: none (it runs and stopping is not allowed, or it changes too fast); -ESRCH: it ended; -EPERM: it
 * may not be traced, or has another tracer; -ETIMEDOUT, -EBUSY: it did not stop. */
int pb_moment_begin(struct pb_moment *m, unsigned ways);

/* Ends it and resumes a stopped thread. 0: everything read in between is of one moment. -EAGAIN: it ran
 * meanwhile, discard the reading. Must be called after every begin that returned a way. */
int pb_moment_end(struct pb_moment *m);

/* Begins a moment, calls read and ends it, again and again until a reading is proved: whenever the thread ran
 * meanwhile, or read returned -EAGAIN. A way that failed a few times is not tried any more. *ret_way: of the
 * last reading. Returns the result of read, or the first error of begin and end; -EAGAIN: nothing could be
 * proved. -ETIMEDOUT from read ends the tries. */
int pb_moment_read(struct pb_moment *m, unsigned ways, int (*read)(void *arg), void *arg,
                   enum pb_way *ret_way);

/* After a begin that returned -EAGAIN: whether the thread is off its CPU and waits only for a CPU. Then a
 * moment (PB_WAY_PINNED) has begun. It was given a CPU as often as it lost one, so it is off its CPU, and the
 * end proves that it stayed so. Known only of threads that were once seen asleep or stopped. */
bool pb_moment_ready(struct pb_moment *m);

/* True: we can tell whether the thread sleeps, so a begin that found it awake is meaningful. */
bool pb_moment_knows_sleep(const struct pb_moment *m);

/* True: the kernel does not count how often a thread was given a CPU. */
bool pb_moment_without_slices(const struct pb_moment *m);

/* Reads its stat file. Returns the length. */
int pb_moment_stat(struct pb_moment *m, char *buf, size_t size);

/* "asleep", "pinned", "stopped", "dead". */
const char *pb_way_name(enum pb_way way);
