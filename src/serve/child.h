/* child: how the service ends its commands (base/process.h starts them).
 *
 * A command of another user may create process groups, stop itself, and be traced by a process that keeps its
 * exit status from us. So nothing here waits: callers poll, and give up a child that has not ended a while
 * after SIGKILL. The kernel does not reuse a pid before the child is reaped, so signals reach the right
 * process also where pidfd_open is refused. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Sends a signal to the child and to its process group. */
void pb_child_signal(pid_t pid, int signal);
/* True: the child has ended and is reaped, and its group was killed; *ret_status is as in a shell. The caller
 * must not use pid again. */
bool pb_child_reap(pid_t pid, int *ret_status);
