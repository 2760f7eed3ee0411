/* child: how the service ends its commands (base/process.h starts them).
 *
 * A command of another user is that user's: it may make groups of its own, stop itself, and be traced by a
 * process that never lets its parent have its exit status. So nothing here waits: callers look again, and
 * give a child up that has not ended a while after SIGKILL. Until a child is reaped its pid is not used
 * again, so it can be sent signals also where pidfd_open is refused. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Sends a signal to the child and to what is left in its process group. */
void pb_child_signal(pid_t pid, int signal);
/* True: it has ended and is reaped, and nothing is left in its group; *ret_status is what a shell would say.
 * The caller must not use pid again. */
bool pb_child_reap(pid_t pid, int *ret_status);
