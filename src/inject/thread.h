/* thread: one thread of the target under ptrace: seized, stopped, resumed, released.
 *
 * Nothing that outlives the tracer is requested from the kernel: no EXITKILL, no single step, no debug
 * register (a single step that loses its tracer kills the thread with SIGTRAP). When the tool dies the thread
 * runs on. The caller has SIGCHLD blocked: waits use sigtimedwait, to have a deadline. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_thread {
    pid_t pid, tid;
    bool stopped;
    bool group_stop; /* the whole process is in a job-control stop */
    bool execed;     /* it runs another program now: the saved registers are not valid */
    int owed;        /* a signal of the program, delivered on release */
    unsigned stops;  /* how often it stopped and waited for us */
    uint64_t since;  /* when it was asked to stop */
};

enum pb_event {
    PB_EVENT_STOP,    /* because we asked, or a job-control stop */
    PB_EVENT_SYSCALL, /* on its way into or out of a system call */
    PB_EVENT_SIGNAL,  /* about to get `signal` */
    PB_EVENT_EXEC,    /* it began another program; its tid is now the pid */
    PB_EVENT_EXIT,
};

/* -EPERM: not allowed, or traced by another; -ESRCH: it is gone. */
int pb_thread_seize(pid_t pid, pid_t tid, struct pb_thread *ret);

/* Stops it; pending signals are delivered first. -ETIMEDOUT: it did not stop (uninterruptible); -ESTALE: it
 * stopped at the start of another program. */
int pb_thread_stop(struct pb_thread *t, uint64_t deadline);

/* Lets it run with a ptrace request (PTRACE_CONT, PTRACE_SYSCALL) and gives it `signal`. */
int pb_thread_resume(struct pb_thread *t, int request, int signal);

/* Asks for a stop and returns at once: it comes as PB_EVENT_STOP. */
int pb_thread_ask(struct pb_thread *t);

/* Waits for the next event. -ETIMEDOUT; -EINTR: SIGINT or SIGTERM is pending (and stays so), with
 * `interruptible` only. *ret_signal is 0 unless the event is a signal. */
int pb_thread_wait(struct pb_thread *t, uint64_t deadline, bool interruptible, enum pb_event *ret,
                   int *ret_signal);

/* Whether SIGINT or SIGTERM, which the caller has blocked, is pending. */
bool pb_thread_interrupted(void);

/* Releases it. Returns how long it was held, in nanoseconds. */
uint64_t pb_thread_release(struct pb_thread *t);

/* A held thread waits for us at each step, most of the time that it is held. From the last look at a thread
 * until its release we run with priority on its CPU, if allowed. We sleep for most of that and do nothing
 * else: a job with one CPU loses no more of it. */
void pb_hurry_begin(pid_t pid, pid_t tid);
void pb_hurry_end(void);
