/* states: thread states of Python's for threads of ours, made and freed while the GIL is held.
 *
 * A thread that enters Python needs a thread state. PyThreadState_New and PyGILState_Ensure make it without
 * the GIL, PyGILState_Release frees it without the GIL (from 3.9 on), and both use the raw allocator, which
 * the program may have replaced. tracemalloc's functions wait for the GIL, and up to 3.13.1 write to freed
 * memory if the program calls tracemalloc.stop() meanwhile; a function in Python (ctypes) calls itself for
 * ever, since it needs a thread state as well. So each thread that has the GIL makes thread states for the
 * threads that enter after it, and frees those of the threads that have left. The first ones are made by a
 * thread of the program between two bytecodes, if the raw allocator was replaced. */
#pragma once

#include "agent/python/python.h"

/* The caller holds the GIL. Frees the thread states that pb_states_leave has left, and makes new ones. */
void pb_states_make(const struct pb_python *py);

/* Asks the main thread (from 3.12 on any thread) to do so between two bytecodes. Without the GIL. */
void pb_states_ask(const struct pb_python *py);

/* Whether a thread of ours waits for that. */
int pb_states_are_asked_for(void);

/* A thread state for the calling thread, which it then takes the GIL with. NULL: none is ready. */
void *pb_states_take(const struct pb_python *py);

/* Releases the GIL, and leaves the thread state to be freed. A thread that has left does not enter again. */
void pb_states_leave(const struct pb_python *py);

/* Whether the program has replaced the raw allocator, and by what. Without the GIL. */
enum pb_states_hook { PB_STATES_NO_HOOK, PB_STATES_TRACEMALLOC, PB_STATES_FOREIGN_HOOK };
enum pb_states_hook pb_states_hook(const struct pb_python *py);

/* The interpreter that they belong to ends, or this is a forked child. */
void pb_states_forget(void);
