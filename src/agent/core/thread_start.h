/* thread_start: starts threads in a process that is not ours. They are detached, and have names that tools
 * show. */
#pragma once

#include <stddef.h>

/* Starts one with every signal blocked: the host's handlers run in the host's threads. stack: bytes that its
 * code needs, 0: little; the C library's own part (the program's static TLS, a guard page) is added. The
 * thread shares the descriptor table of its creator (fds.h). 0 or negative errno. */
int pb_thread_start(void *(*run)(void *), void *argument, size_t stack);

/* Whether it was started by pb_thread_start. The number of an ended thread may be that of another now. */
int pb_thread_is_ours(int tid);

/* How many threads that were started by pb_thread_start the kernel still knows, but for the calling one. */
int pb_thread_others_run(void);

/* In a forked child. */
void pb_threads_forget(void);

/* Gives the calling thread the main thread's signal mask: for the user's code, whose children inherit it. The
 * resident thread reads the mask beforehand: a thread of the program must open no file. */
void pb_thread_read_host_signals(void);
void pb_thread_take_host_signals(void);

/* Names the calling thread. */
void pb_thread_name(const char *name);

/* The calling thread's tid, without a system call (which costs more than a row) if the C library's copy was
 * found. Signal-safe. */
int pb_thread_id(void);
