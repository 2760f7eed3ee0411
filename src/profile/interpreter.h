/* interpreter: which native functions are CPython's own machinery rather than what a program does: its loop,
 * how it calls a function, how it starts, and how the C library starts it.
 *
 * In a native profile these frames stand between any two Python frames and say nothing that those do not;
 * writers fold them into the frame that called them (pb_profile_fold_interpreter). What the machinery does
 * for its own sake (collecting garbage, waiting for the GIL, importing, allocating) is not among them. */
#pragma once

#include <stdbool.h>

bool pb_interpreter_function(const char *name);
