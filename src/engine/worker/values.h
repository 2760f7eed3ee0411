/* values: DuckDB's vectors as columns of typed cells (cells.h). Exact: every value can be had back. */
#pragma once

#include "engine/shared/cells.h"

#include <duckdb.h>

/* How the cells of a column are read, worked out once a result. */
struct pb_value_type;

/* NULL: out of memory. */
struct pb_value_type *pb_value_type_new(duckdb_logical_type type);
void pb_value_type_free(struct pb_value_type *t);

/* The type as SQL spells it, of malloc; NULL: out of memory. */
char *pb_value_type_name(const struct pb_value_type *t);

/* What its cells are to readers of the rows, and the scale of a decimal. */
enum pb_cell_type pb_value_cells(const struct pb_value_type *t);
unsigned pb_value_scale(const struct pb_value_type *t);

/* Appends n rows of a vector as a column of a batch. False: there is no memory, or the message has become
 * larger than `most` and fewer rows might do. */
bool pb_value_put_column(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t from,
                         idx_t n, size_t most);
