/* interrupted: makes system calls continue that a ptrace stop would end with EINTR.
 *
 * Most calls that a stop interrupts are restarted by the kernel when no signal handler runs. Some are not:
 * epoll_wait, semop, sigtimedwait, io_getevents, io_uring_enter, and everything on a socket that has a
 * timeout. A program without handlers never expects EINTR from them. So after a stop, before the thread
 * continues, its result -EINTR is replaced by -ERESTARTNOHAND: the kernel then begins the call again when no
 * handler runs, and returns EINTR when one does, whichever signals are pending.
 * A call with a relative timeout begins again with all of it (`finite`): the wait gets longer by the time
 * already waited. So a thread that is seen waiting in such a call must not be stopped
 * (pb_waiting_would_begin_anew); it can be read without a stop. Calls that keep the rest of their time (poll,
 * select, nanosleep, futex) are restarted by the kernel and not changed here.
 * A call that has moved a part of its data when it is stopped is finished by remote/transfer.h.
 *
 * Nothing here allocates or takes locks; pb_interrupted_mend is signal-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The contents of /proc/PID/task/TID/syscall for a thread that is off its CPU. */
struct pb_waiting {
    long number; /* of the system call; -1: in none (a page fault) */
    uint64_t args[6];
    uint64_t sp, pc;
};

/* Parses that file. False: the thread is running or runnable, or the text is not valid. */
bool pb_waiting_parse(struct pb_waiting *ret, const char *text);

/* Reads that file. fd: the file, open; -1: it is opened here, signal-safely. 1: the thread waits; 0: it runs;
 * negative: it is gone (-ESRCH), or may not be read. */
int pb_waiting_read(pid_t pid, pid_t tid, int fd, struct pb_waiting *ret);

/* Whether a stop may make the wait longer, because the call has a relative timeout that restarts, or
 * (select, ppoll) does not count the time of the stop. A socket's timeout is read through a descriptor that
 * we fetch for a moment; where that is not allowed, it is assumed to have one. */
bool pb_waiting_would_begin_anew(pid_t pid, const struct pb_waiting *w);

/* select and ppoll are restarted with the remaining time: one stop makes them wait no longer than it lasts.
 * On aarch64 poll of the C library is ppoll, and select is pselect. */
bool pb_waiting_keeps_its_time(const struct pb_waiting *w);

enum pb_timeout {
    PB_TIMEOUT_NONE,
    PB_TIMEOUT_MS,       /* milliseconds in a register */
    PB_TIMEOUT_TIMESPEC, /* by pointer */
    PB_TIMEOUT_RING,     /* of io_uring_enter, in a struct by pointer */
    PB_TIMEOUT_RECEIVE,  /* the option SO_RCVTIMEO of the socket */
    PB_TIMEOUT_SEND,     /* SO_SNDTIMEO */
};

struct pb_interrupted {
    bool was;                /* a stop ended it with EINTR; it begins again unless a handler runs */
    bool finishes;           /* a stop ended it with a part of its work done; the thread does the rest */
    bool finite;             /* it begins again with all of its timeout */
    enum pb_timeout timeout; /* where the timeout is */
    int argument;            /* which argument has it, or the socket; -1: none */
    long number;             /* of the system call; -1: none */
    uint64_t args[6];
    int64_t result;
};

/* After any ptrace stop of thread tid, ours or a signal's: repairs the result if the thread is leaving such a
 * call. `before`: the call it waited in before the stop, NULL or number -1: not known. On aarch64, whose
 * kernel has forgotten the call by then, it tells a wait that the stop ended from one that a handler of the
 * program ended just before: one of these that has left its frame on the stack is left alone. `signal`: that
 * the thread will receive when it continues. ret may be NULL. */
int pb_interrupted_mend(pid_t pid, pid_t tid, const struct pb_waiting *before, int signal,
                        struct pb_interrupted *ret);
