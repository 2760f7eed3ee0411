/* trace: stops one thread of another process by ptrace and lets it go, whatever happens to it meanwhile.
 *
 * A traced thread also stops for each of its signals, and waits there for its tracer. So nothing stays traced
 * between two stops: a signal is handed on within the microseconds of the stop that it hit. To keep threads
 * seized would save a microsecond of twenty, and make signals wait for our next look.
 * A thread that does not stop in time (it is in the kernel, or is given no CPU) is let go by a handler of
 * SIGCHLD as soon as it does. If we die, the kernel lets go, and no signal is lost: stops are looked at,
 * never taken off (a signal whose stop a dead tracer had waited for would be gone). Ctrl-Z waits until we
 * have let go. The thread of ours that stopped a thread must let it go, once; there may be several of them.
 * A system call that a stop would end with EINTR is made to begin again (remote/interrupted.h), and a thread
 * that is seen waiting in one whose timeout would begin again too, or be kept from running by the stop, is
 * not stopped at all. So a stop makes a wait longer only where the thread went to wait between that look and
 * the stop, and only by the time between them: microseconds, or as long as it was given no CPU.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Stops thread tid of process pid. syscall_fd: its file of that name in /proc, open; -1: not. *ret_signal:
 * what pb_trace_let_go is to hand on. -ESRCH: it ended; -EPERM: it may not be traced, or has a tracer;
 * -EINPROGRESS: it waits, and a stop would make its wait longer: to be read as it sleeps; -ETIMEDOUT: it did
 * not stop in time; -EBUSY: it still has not since an earlier time, or too many are like that. */
int pb_trace_stop(pid_t pid, pid_t tid, int syscall_fd, uint64_t within_ns, int *ret_signal);
void pb_trace_let_go(pid_t pid, pid_t tid, int signal);

/* Whether the handler of SIGCHLD has run since this was last asked: a sleep that it cut short is to go on. */
bool pb_trace_woke_us(void);

/* How many waits with a timeout of their own our stops have begun again so far. A thread is not stopped when
 * it is seen in such a wait: these had begun in the microseconds between the look and the stop. */
unsigned pb_trace_restarts(void);
