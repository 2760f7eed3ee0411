/* last: ends the process where only threads of ours are left.
 *
 * The kernel ends a process with its last thread, and the C library calls exit(0) in it. A program whose main
 * thread has ended (pthread_exit, a child that another thread has forked) relies on that. So the resident
 * thread looks, four times a second: first at the main thread alone, which nearly always lives. */
#pragma once

#include <stdint.h>

/* Whether only threads of ours are left. Of the resident thread, in each of its turns. */
int pb_last_look(uint64_t now);

/* Called when pb_last_look returned true: ends the agent's other threads, including those that run an eval.
 * The resident thread returns from its function afterwards. The last of them uses the program's descriptors,
 * so that the C library can flush its buffers there when the process ends. */
void pb_last_end(uint32_t starter);
