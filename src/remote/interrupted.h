/* interrupted: system calls that a ptrace stop would end with EINTR, made to go on as if nothing had been.
 *
 * Most calls that a stop interrupts are restarted by the kernel when no signal handler runs. Some are not:
 * epoll_wait, semop, sigtimedwait, io_getevents, io_uring_enter, and everything on a socket that has a
 * timeout. A program without handlers never expects EINTR of them. So after a stop, before the thread goes
 * on, its result -EINTR is replaced by -ERESTARTNOHAND: the kernel then begins the call again when no handler
 * runs, and returns EINTR when one does, whichever signals are pending.
 * A call with a relative timeout begins again with all of it (`finite`): the wait gets longer by the time
 * already waited. So a thread that is seen waiting in such a call must not be stopped
 * (pb_waiting_would_begin_anew); it can be read without. Calls that keep what is left of their time (poll,
 * select, nanosleep, futex) are the kernel's affair and not changed here.
 *
 * Nothing here allocates or takes locks; pb_interrupted_mend is signal-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What /proc/PID/task/TID/syscall says of a thread that is off its CPU. */
struct pb_waiting {
    long number; /* of the system call; -1: in none (a page fault) */
    uint64_t args[6];
    uint64_t sp, pc;
};

/* Parses it. False: the thread runs or wants to, or the text is something else. */
bool pb_waiting_parse(struct pb_waiting *ret, const char *text);

/* Reads it. fd: that file, open; -1: it is opened here, signal-safely. 1: it waits; 0: it runs; negative: it
 * is gone (-ESRCH), or not ours to see. */
int pb_waiting_read(pid_t pid, pid_t tid, int fd, struct pb_waiting *ret);

/* Whether the wait may become longer by a stop, because the call has a relative timeout that begins anew, or
 * (select, ppoll) does not count the time of the stop. Of a socket its timeout is asked for by a descriptor
 * of it that we have for a moment; where that is not allowed, it may have one. */
bool pb_waiting_would_begin_anew(pid_t pid, const struct pb_waiting *w);

enum pb_timeout {
    PB_TIMEOUT_NONE,
    PB_TIMEOUT_MS,       /* milliseconds in a register */
    PB_TIMEOUT_TIMESPEC, /* by pointer */
    PB_TIMEOUT_RING,     /* of io_uring_enter, in a struct by pointer */
    PB_TIMEOUT_RECEIVE,  /* the option SO_RCVTIMEO of the socket */
    PB_TIMEOUT_SEND,     /* SO_SNDTIMEO */
};

struct pb_interrupted {
    bool was;                /* it ended with EINTR for a stop; it begins again unless a handler runs */
    bool finite;             /* it begins again with all of its timeout */
    enum pb_timeout timeout; /* where that is */
    int argument;            /* which argument has it, or the socket; -1: none */
    long number;             /* of the system call; -1: none */
    uint64_t args[6];
};

/* Judges the result of a call: pure. `result` as the kernel has it in the stop. */
void pb_interrupted_judge(long number, const uint64_t args[6], int64_t result, struct pb_interrupted *ret);

/* After any ptrace stop of thread tid, ours or a signal's: finds out whether it is on its way out of such a
 * call and mends its result. `before`: what it waited in before the stop, NULL or number -1: not known; used
 * on aarch64, whose kernel has forgotten call and first argument by then: there a call that the thread went
 * into after the last look still ends with EINTR. `signal`: that the thread will be handed when it goes on.
 * ret may be NULL. */
int pb_interrupted_mend(pid_t pid, pid_t tid, const struct pb_waiting *before, int signal,
                        struct pb_interrupted *ret);
