/* type_name: whether a text is the name of an SQL type as a worker spells it, and nothing else.
 *
 * What writes Parquet puts these names into statements of its own, and it has files: a worker under
 * an attacker's control must not get any other SQL into them. Caller's and worker's side; no heap. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* NAME, DECIMAL(18,3), STRUCT("a" T, ...), UNION("a" T, ...), MAP(T, T), each with [] or [3] behind it. */
bool pb_type_name_is_good(const char *text, size_t length);
