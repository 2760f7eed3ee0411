/* interpreter: which native functions are CPython's own machinery rather than the program: its loop, its
 * calls of functions, its start, and its start by the C library.
 *
 * In a native profile these frames stand between any two Python frames and add nothing to them; writers fold
 * them into the frame that called them (pb_profile_fold_interpreter). The interpreter's real work (collecting
 * garbage, waiting for the GIL, importing, allocating) is not folded. */
#pragma once

#include <stdbool.h>

bool pb_interpreter_function(const char *name);
