/* spawn: threads for Python code, in the descriptor table of the program.
 *
 * A thread shares the descriptor table of the thread that creates it. The resident thread has a table of its
 * own (fds.h), but code that a user runs must find the program's files. So a thread named probing-start stays
 * in the program's table and creates them on demand; it opens nothing and does nothing else. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Has a thread started with a stack of 8 MB, soon. failed (or NULL) is called in another thread where that
 * could not be done, with a negative errno. -EAGAIN: too many are waiting to be started. From any thread. */
int pb_spawn(void *(*run)(void *), void (*failed)(void *argument, int error), void *argument);

/* The life of that thread: begin gives it a number, serve is its loop, end lets the loop of that number
 * return once everything asked for before is started. begin takes no lock: it is called in a borrowed thread,
 * which may be one of ours. */
uint32_t pb_spawn_begin(void);
void pb_spawn_serve(uint32_t number);
void pb_spawn_end(uint32_t number);

/* In a forked child: nothing is to be started. */
void pb_spawn_forget(void);
