/* spawn: threads for Python code, in the descriptor table of the program.
 *
 * A thread shares the descriptor table of the thread that creates it. The resident thread has a table of its
 * own (fds.h), but a user's code must find the program's files. So a thread named probing-start stays in the
 * program's table. On demand it starts another such thread and runs the code itself. If it kept starting
 * threads instead, glibc would reserve one heap for it and one for each thread that runs code (64 MB of
 * address space, for good); this way all code that does not run at the same time shares one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Has `run` called soon in a thread with a stack for Python code. On failure `failed` (or NULL) is called in
 * another thread, with a negative errno. -EAGAIN: too many are waiting to be started, -ESHUTDOWN: the agent
 * is detached. From any thread. */
int pb_spawn(void *(*run)(void *), void (*failed)(void *argument, int error), void *argument);

/* The life of probing-start: begin gives it a number, start makes it, end lets the last of that number return
 * once all earlier orders are started. begin takes no lock: it is called in a borrowed thread, which may be
 * one of ours. */
uint32_t pb_spawn_begin(void);
int pb_spawn_start(uint32_t number);
void pb_spawn_end(uint32_t number);

/* In a forked child: drops all orders. */
void pb_spawn_forget(void);
