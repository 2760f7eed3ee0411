/* line_tables: from an instruction to its line, by the four kinds of line tables that CPython has had.
 *
 * No side effects; the bytes may be hostile; at most as many steps as there are bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "remote/python/struct_offsets.h"

/* The line of the instruction at byte offset `at` of a code that begins at first_line. 0: it has none, or
 * lies outside of the table. */
int pb_py_line_at(enum pb_py_lines kind, const uint8_t *table, size_t len, int first_line, int at);
