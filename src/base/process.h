/* process: starting processes: a child that runs code of ours, one that nobody waits for, another program.
 * Tools only. How a process is ended is in ending.h.
 *
 * The children of questions (ask/task.h) are made there: they share memory with their parent. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* A child that runs code of ours: 0 in it, its pid or a negative errno in the caller. It is sent the signal
 * when the calling thread ends; 0: it is not. What stdio has not written yet would be written by both. */
pid_t pb_process_fork(int end_with_caller);

/* The same with the child's stdout and stderr as pipes, whose reading ends are ret_fds. It gets SIGTERM when
 * the calling thread ends, so that it can clean up. */
pid_t pb_process_fork_piped(int ret_fds[2]);

/* Starts a process in a session of its own that is not our child: it outlives the caller, which need not wait
 * for it. 0 in it; 1 or a negative errno in the caller. */
int pb_process_orphan(void);

/* Waits for the end of a child. What a shell would say: its exit status, or 128 + the signal that ended it;
 * -ECHILD: there is no such child. */
int pb_process_wait(pid_t pid);

struct pb_process_plan {
    const char *const *argv;  /* argv[0]: the program; ends with NULL */
    char *const *environment; /* NULL: ours */
    bool search;              /* along PATH */
    const char *folder;       /* where it works; NULL, "": where the caller does */
    int in, out, errors;      /* what its standard streams become */
    bool session;             /* it gets a session of its own, else a process group of its own */
    bool terminal;            /* in is a terminal, which becomes that of its session */
    int end_with_caller;      /* as for pb_process_fork */
};

/* Starts another program, with no signal blocked and SIGPIPE as usual. Its pid, or a negative errno: it could
 * not be executed. As vfork, since the caller may be large: the child borrows our memory until it is that
 * program. */
pid_t pb_process_start(const struct pb_process_plan *plan);
