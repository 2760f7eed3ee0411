/* program: where this program is, and the files that are installed with it: PREFIX/bin/probing,
 * PREFIX/bin/probing-serve, PREFIX/lib/probing. Tools only. */
#pragma once

#include <stddef.h>

/* This program's file, for an exec of itself: also where it was replaced or removed meanwhile. */
#define PB_PROGRAM_SELF "/proc/self/exe"

/* Its path. -ENAMETOOLONG: size is too small. */
int pb_program_path(char *ret, size_t size);

/* The path of another program in the same folder, whether or not it is there. */
int pb_program_beside(const char *name, char *ret, size_t size);

/* PREFIX. -ENOENT: the program is in no folder that is in another. */
int pb_program_prefix(char *ret, size_t size);
