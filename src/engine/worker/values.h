/* values: DuckDB's vectors as cells of text that are exact: every value can be had back from what is written.
 *
 * Numbers are written in full (64 and 128 bits, decimals with their scale, a decimal that is the
 * same double); times as SQL writes them; lists, structs and maps as JSON. */
#pragma once

#include "engine/shared/wire.h"

#include <duckdb.h>

/* How the cells of a column are read, worked out once a result. */
struct pb_value_type;

/* NULL: out of memory. */
struct pb_value_type *pb_value_type_new(duckdb_logical_type type);
void pb_value_type_free(struct pb_value_type *t);

/* The type as SQL spells it, of malloc; NULL: out of memory. */
char *pb_value_type_name(const struct pb_value_type *t);

/* Appends one cell: kind, length, text. */
void pb_value_put(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t row);
