/* trace: stops one thread of another process by ptrace and releases it, whatever happens to it meanwhile.
 *
 * A traced thread also stops for each of its signals, and waits there for its tracer. So no thread stays
 * traced between two stops: a signal is delivered within the microseconds of the stop that it hit. Keeping
 * threads seized would save a microsecond of twenty, and delay signals until our next look.
 * A thread that does not stop in time (it is in the kernel, or gets no CPU) is released by a handler of
 * SIGCHLD as soon as it does. If we die, the kernel releases it, and no signal is lost: stops are looked at,
 * never consumed (a signal whose stop a dead tracer had waited for would be lost). Ctrl-Z waits until the
 * release. The thread of ours that stopped a thread must release it, once; there may be several of them.
 * A system call that a stop would end with EINTR is made to begin again (remote/interrupted.h), one that has
 * done a part of its work does the rest (remote/transfer.h). A thread is not stopped at all if it is seen
 * waiting in such a transfer, or in a call whose timeout would begin again too, or not count the stop. So a
 * stop makes a wait longer only if the wait began between that look and the stop, and only by the time
 * between them: microseconds, or as long as the thread got no CPU. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Stops thread tid of process pid. syscall_fd: its file of that name in /proc, open; -1: not. *ret_signal:
 * the argument for pb_trace_let_go. -ESRCH: it ended; -EPERM: it may not be traced, or has a tracer;
 * -EINPROGRESS: it waits, and a stop would make its wait longer or cut it short: read it asleep; -ETIMEDOUT:
 * it did not stop in time; -EBUSY: it still has not stopped since an earlier request, or too many have
 * not. */
int pb_trace_stop(pid_t pid, pid_t tid, int syscall_fd, uint64_t within_ns, int *ret_signal);
void pb_trace_let_go(pid_t pid, pid_t tid, int signal);

/* The same for a thread that is stopped once, not again and again: also where it waits in a call that does
 * not count the time of a stop (pb_waiting_keeps_its_time). */
int pb_trace_stop_once(pid_t pid, pid_t tid, uint64_t within_ns, int *ret_signal);

/* Whether the handler of SIGCHLD has run since the last call: a sleep that it cut short should continue. */
bool pb_trace_woke_us(void);

/* How many waits with a timeout our stops have restarted so far. A thread seen in such a wait is not stopped:
 * these waits began in the microseconds between the look and the stop. */
unsigned pb_trace_restarts(void);
