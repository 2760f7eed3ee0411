/* seccomp: how the seccomp filters of a process would answer the system calls that we make in it.
 *
 * Checked before the first call, since a filter may kill. The filters (classic BPF) are read with
 * PTRACE_SECCOMP_GET_FILTER, which takes root and a stop of tens of microseconds, and run here for each call
 * of a table. Without the right to read them a child of ours makes the calls, if it has the same filters
 * (inherited in the same container). A process with more filters than ours cannot be checked. */
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_procinfo;

/* Runs one filter as the kernel does. -EINVAL: the kernel would not have accepted it (an unknown instruction,
 * a jump or load out of bounds, no end). */
int pb_seccomp_run(const struct sock_filter *code, size_t n, const struct seccomp_data *data, uint32_t *ret);

enum pb_seccomp_verdict {
    PB_SECCOMP_ALLOWED,
    PB_SECCOMP_ERROR, /* the call fails: its caller handles that */
    PB_SECCOMP_FATAL, /* kills, traps, or waits for another program */
};

/* The meaning of the strictest filter's answer. */
enum pb_seccomp_verdict pb_seccomp_judge(const uint32_t *answers, size_t n);

/* The purpose of a call. A filter that kills for a call of one command only rules out that command. */
enum pb_seccomp_use {
    PB_SECCOMP_AGENT,  /* by the stub, the thread that loads, and any agent */
    PB_SECCOMP_LISTEN, /* by an agent that is asked to listen (channel_listen.c) */
    PB_SECCOMP_CATCH,  /* by the handlers of fatal signals, in whichever thread fails (crash.c) */
    PB_SECCOMP_USES,
};

struct pb_seccomp_call {
    const char *name;
    int number;
    uint64_t args[6];
    enum pb_seccomp_use use;
};

extern const struct pb_seccomp_call pb_seccomp_calls[];
extern const size_t pb_seccomp_ncalls;

/* Writes the names of the calls for that use which are fatal to process p into names, and returns how many.
 * For an agent already there, the filters of its own thread count. -EACCES: cannot be known; -EAGAIN: every
 * thread is in a wait that must not be disturbed for it; -ESRCH: it is gone. */
int pb_seccomp_check(const struct pb_procinfo *p, enum pb_seccomp_use use, char *names, size_t size);

/* The same for an agent's calls in one thread, which the caller has in a ptrace stop: threads may have
 * filters of their own. */
int pb_seccomp_check_stopped(pid_t tid, char *names, size_t size);
