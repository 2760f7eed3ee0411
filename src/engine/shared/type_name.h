/* type_name: the SQL names of types, of types.def, and whether a text is such a name and nothing else.
 *
 * The process that writes Parquet pastes these names into its own statements, and it can write files: a
 * worker under an attacker's control must not get other SQL into them. Caller's and worker's side; no
 * heap. */
#pragma once

#include "engine/shared/cells.h"
#include "table/arena.h"

/* The SQL name of a column of an arena; "?" for what is no type. */
const char *pb_stored_type_name(enum pb_type type);

/* The SQL name of a column of such cells; NULL: it is made from the type's parts (DECIMAL, JSON). */
const char *pb_cell_type_name(enum pb_cell_type type);

/* A name of types.def, DECIMAL(18,3), STRUCT("a" T, ...), UNION("a" T, ...), MAP(T, T), each optionally
 * followed by [] or [3]. */
bool pb_type_name_is_good(const char *text, size_t length);
