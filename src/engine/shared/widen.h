/* widen: one type for a column that sources recorded in several types, without changing any value. No
 * heap. */
#pragma once

#include "table/layout.h"

#include <stddef.h>
#include <stdint.h>

/* The narrowest type that holds every value of both; 0: none (a number and text, 64 bits and a float, UBIGINT
 * and a signed integer). */
enum pb_type pb_widen_type(enum pb_type a, enum pb_type b);

/* Converts cells to the wider type that pb_widen_type gave. */
void pb_widen_cells(const void *from, enum pb_type from_type, void *to, enum pb_type to_type, size_t n);
