/* thread: starting threads in a process that is not ours. They are detached, and named for whoever looks. */
#pragma once

#include <stddef.h>

/* Starts one with every signal blocked: the host's handlers run in the host's threads. stack: what its code
 * needs, 0 for little; what the C library takes from it (the program's static TLS, a guard page) comes on
 * top. The thread has the descriptor table of its creator (fds.h). 0 or negative errno. */
int pb_thread_start(void *(*run)(void *), void *argument, size_t stack);

/* Gives the calling thread the main thread's signal mask: for code of the user's, whose children inherit it.
 * The mask is the one that the resident thread read last: a thread of the program's must open no file. */
void pb_thread_read_host_signals(void);
void pb_thread_take_host_signals(void);

/* Names the calling thread. */
void pb_thread_name(const char *name);

/* The calling thread's number in the kernel, without asking the kernel where the C library keeps it: a
 * system call costs more than a row. Signal-safe. */
int pb_thread_id(void);
