/* enter: how a thread of ours gets to run Python code: finds the API, makes sure there is a GIL, takes it,
 * and leaves in time when the program ends.
 *
 * An interpreter that ends frees memory that a thread outside the GIL may be about to use: a thread that asks
 * for its first GIL crashes (PyGILState_Ensure after the interpreter's end), and so does one that waits for a
 * lock of the import system without the GIL. One that is refused its return to Python keeps the locks that it
 * has, and the end waits for them for ever. So the end waits for us: our Python code has registered
 * pb_enter_end() with atexit, and the interpreter's dict, which is cleared early, holds a capsule
 * whose destructor refuses further entries (3.8 and later; before that there is no such dict). */
#pragma once

#include "agent/python/python.h"

#include <stddef.h>

/* -errno with a sentence in why: no Python here, an unsuitable one, one that starts or ends. May wait for the
 * loader. */
int pb_enter_find(struct pb_python *ret, char *why, size_t why_size);

/* Up to 3.6 there is no GIL until the program starts a thread: asks the main thread to create it, and waits
 * for that as long as `wanted` returns true. 1: pb_enter may be called; 0: `wanted` returned false. */
int pb_enter_await_gil(const struct pb_python *py, int (*wanted)(const void *), const void *argument);

struct pb_entry {
    unsigned place; /* index in the list of threads inside */
};

/* Waits for the GIL, in a thread of ours that does not hold it and is not Python's. -ESHUTDOWN: the
 * interpreter ends, -EAGAIN: too many of our threads are inside, -ENOMEM. Like every thread that asks for the
 * GIL it does not return if the interpreter ends meanwhile. */
int pb_enter(const struct pb_python *py, struct pb_entry *ret);
void pb_leave(const struct pb_python *py, const struct pb_entry *entry);

/* Whether the calling thread has entered. With the GIL. */
int pb_enter_is_inside(const struct pb_python *py);

/* Around the evaluation of a user's code, with the GIL; calls nest. begin: -ESHUTDOWN: the program ends, and
 * the code must not run; else what end wants. end: whether an interrupt was set, which may still have to
 * strike. */
int pb_enter_begin_code(const struct pb_python *py);
int pb_enter_end_code(const struct pb_python *py, int before);

/* Sets a KeyboardInterrupt in that thread of ours if it runs a user's code. With the GIL. */
void pb_enter_interrupt(const struct pb_python *py, unsigned long ident);

/* Where there is no GIL: one thread of ours at a time loads our Python part and compiles, as with a GIL.
 * CPython 3.15 deadlocks when some threads intern strings while another collects garbage. Returns what the
 * other function wants. With a thread state, which is detached during the wait. */
int pb_enter_take_turn(const struct pb_python *py);
void pb_enter_pass_turn(int taken);

/* At Python's end: from now on pb_enter fails, and no code of a user begins. */
void pb_enter_close(void);
int pb_enter_is_closed(void);

/* After that, in the main thread with the GIL: interrupts the code of users in threads of ours, and waits for
 * these threads: a moment, and longer for code of our own. */
void pb_enter_end(const struct pb_python *py);

/* In a forked child, where our threads do not exist. */
void pb_enter_forget(void);

/* In such a child: whether the thread was inside when its parent forked; its locks will never be released. */
int pb_enter_left_behind(unsigned long ident);
