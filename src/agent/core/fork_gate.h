/* fork_gate: no fork of the program while a thread of ours holds a lock that its child would wait for.
 *
 * Most locks of the C library and of Python are made again in the child of a fork. Two are not: that of the
 * list of thread states (CPython 3.8 to 3.11, enter.c) and that of glibc's list of loaded objects
 * (dl_iterate_phdr). A thread of ours that needs one of them calls pb_fork_gate_enter first. The handlers
 * below, registered with pthread_atfork, make the fork wait until the thread has left: microseconds, and 20
 * ms at most, then the fork goes on in any case.
 *
 * Never in a thread of the program, which may be inside fork itself, and never with the GIL held, which a
 * handler of fork may want. */
#pragma once

#include <link.h>

/* Waits while a thread of the program is in fork. */
void pb_fork_gate_enter(void);
void pb_fork_gate_leave(void);

/* dl_iterate_phdr inside the gate. The callback must not wait for anything. */
int pb_fork_gate_each_object(int (*callback)(struct dl_phdr_info *, size_t, void *), void *argument);

/* Handlers of fork: before it and after it in the parent. */
void pb_fork_gate_close(void);
void pb_fork_gate_open(void);

/* In the child, which has none of our threads. */
void pb_fork_gate_forget(void);
