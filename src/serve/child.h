/* child: how the service starts and ends its commands.
 *
 * A command of another user is that user's: it may make groups of its own, stop itself, and be traced by a
 * process that never lets its parent have its exit status. So nothing here waits: callers look again, and
 * give a child up that has not ended a while after SIGKILL. Until a child is reaped its pid is not used
 * again, so it can be sent signals also where pidfd_open is refused. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { PB_CHILD_STACK = 65536 };

struct pb_child_plan {
    char *const *argv, *const *environment; /* argv[0]: the program; both end with NULL */
    const char *folder;                     /* where it works; "": where the service does */
    int in, out, errors;
    bool session;  /* it gets a session of its own, else a process group of its own */
    bool terminal; /* in is a terminal, which becomes that of its session */
};

/* The child, or a negative errno. stack: PB_CHILD_STACK bytes, aligned to 16, of this call alone. Any thread,
 * which lives as long as the child: the child is sent SIGTERM when that thread ends. */
pid_t pb_child_start(const struct pb_child_plan *plan, char *stack);

/* Sends a signal to the child and to what is left in its process group. */
void pb_child_signal(pid_t pid, int signal);
/* True: it has ended and is reaped, and nothing is left in its group; *ret_status is what a shell would say.
 * The caller must not use pid again. */
bool pb_child_reap(pid_t pid, int *ret_status);
