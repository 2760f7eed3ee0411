/* thread: starting threads in a process that is not ours. They are detached, and named for whoever looks. */
#pragma once

#include <stddef.h>

/* Starts one with every signal blocked: the host's handlers run in the host's threads. stack 0: a small one.
 * 0 or negative errno. */
int pb_thread_start(void *(*run)(void *), void *argument, size_t stack);

/* Gives the calling thread the main thread's signal mask: for code of the user's, whose children inherit it.
 */
void pb_thread_take_host_signals(void);

/* Names the calling thread. */
void pb_thread_name(const char *name);
