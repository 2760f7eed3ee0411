/* thread: one thread of the target under ptrace: seized, stopped, run on, let go.
 *
 * Nothing that outlives the tracer is ever asked of the kernel: no EXITKILL, no single step, no debug
 * register (a single step that loses its tracer kills the thread with SIGTRAP). When the tool dies the thread
 * goes on. The caller has SIGCHLD blocked: waits are sigtimedwait, so that they have a deadline. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_thread {
    pid_t pid, tid;
    bool stopped;
    bool group_stop; /* the whole process is in a job-control stop */
    bool execed;     /* it runs another program now: its registers are not the ones we saved */
    int owed;        /* a signal of the program's that is handed on when it is let go */
    unsigned stops;  /* how often it stopped for us, and waited for us: hand-overs */
    uint64_t since;  /* when we asked it to stop */
};

enum pb_event {
    PB_EVENT_STOP,    /* because we asked, or a job-control stop */
    PB_EVENT_SYSCALL, /* on its way into or out of a system call */
    PB_EVENT_SIGNAL,  /* about to get `signal` */
    PB_EVENT_EXEC,    /* it has begun another program; a thread that did has the pid for its tid now */
    PB_EVENT_EXIT,
};

/* -EPERM: not allowed, or traced by another; -ESRCH: it is gone. */
int pb_thread_seize(pid_t pid, pid_t tid, struct pb_thread *ret);

/* Stops it; signals on their way are delivered first. -ETIMEDOUT: it did not stop (uninterruptible);
 * -ESTALE: it did, at the start of another program. */
int pb_thread_stop(struct pb_thread *t, uint64_t deadline);

/* Lets it run with a ptrace request (PTRACE_CONT, PTRACE_SYSCALL) and gives it `signal`. */
int pb_thread_resume(struct pb_thread *t, int request, int signal);

/* Asks for a stop and returns at once: it comes as PB_EVENT_STOP. */
int pb_thread_ask(struct pb_thread *t);

/* Waits for what comes next. -ETIMEDOUT; -EINTR: SIGINT or SIGTERM came and is left pending, where the
 * caller allows it by `interruptible`. *ret_signal is 0 unless the event is a signal. */
int pb_thread_wait(struct pb_thread *t, uint64_t deadline, bool interruptible, enum pb_event *ret,
                   int *ret_signal);

/* Whether SIGINT or SIGTERM, which the caller has blocked, is pending. */
bool pb_thread_interrupted(void);

/* Lets go of it. Returns how long it was held, in nanoseconds. */
uint64_t pb_thread_release(struct pb_thread *t);

/* A held thread waits for us at each step: that is most of the time it is held. From the last look at a
 * thread until it is let go we run ahead of others, on its CPU, where we may. We sleep for most of that, and
 * do nothing else meanwhile: a job with one CPU loses no more of it than that. */
void pb_hurry_begin(pid_t pid, pid_t tid);
void pb_hurry_end(void);
