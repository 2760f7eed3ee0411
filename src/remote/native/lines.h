/* lines: the source of an address: function, file and line, and the calls inlined there.
 *
 * Reads .debug_info and .debug_line itself, and only the unit in question: a library takes longer to open one
 * file than a whole backtrace may take, and may not be installed. Keeps the last units. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_lines;
struct pb_object;

struct pb_source_frame {
    char function[512]; /* "": not known */
    char file[512];
    unsigned line;
};

/* -ENOENT: no debug information, or it is compressed. The object outlives it. */
int pb_lines_open(const struct pb_object *o, struct pb_lines **ret);
void pb_lines_free(struct pb_lines *l);

/* ret[0] is the innermost inlined call, the last one the function itself; names as the linker has them.
 * Returns how many, 0: not known. */
int pb_lines_find(struct pb_lines *l, uint64_t addr, struct pb_source_frame *ret, size_t max);
