/* type_name: whether a text is the name of an SQL type as a worker writes it, and nothing else.
 *
 * The process that writes Parquet pastes these names into its own statements, and it can write files: a
 * worker under an attacker's control must not get other SQL into them. Caller's and worker's side; no
 * heap. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* NAME, DECIMAL(18,3), STRUCT("a" T, ...), UNION("a" T, ...), MAP(T, T), each optionally followed by [] or
 * [3]. */
bool pb_type_name_is_good(const char *text, size_t length);
