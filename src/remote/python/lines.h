/* lines: from an instruction to the line it belongs to, by the four kinds of line tables CPython has had.
 *
 * Pure functions over bytes that may be hostile; they end after at most as many steps as there are bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "remote/python/layout.h"

/* The line of the instruction at byte offset `at` of a code that begins at first_line. 0: it has none, or
 * lies outside of the table. */
int pb_py_line_at(enum pb_py_lines kind, const uint8_t *table, size_t len, int first_line, int at);
