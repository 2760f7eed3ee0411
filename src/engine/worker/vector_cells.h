/* vector_cells: converts DuckDB's vectors to columns of typed cells (cells.h). Exact: no value is changed. */
#pragma once

#include "engine/shared/cells.h"

#include <duckdb.h>

/* How the cells of a column are read, computed once per result. */
struct pb_value_type;

/* NULL: out of memory. */
struct pb_value_type *pb_value_type_new(duckdb_logical_type type);
void pb_value_type_free(struct pb_value_type *t);

/* The SQL name of the type, from malloc; NULL: out of memory. */
char *pb_value_type_name(const struct pb_value_type *t);

/* The type of its cells, and the scale of a decimal. */
enum pb_cell_type pb_value_cells(const struct pb_value_type *t);
unsigned pb_value_scale(const struct pb_value_type *t);

/* Appends n rows of a vector as a column of a batch. False: out of memory, or the message is larger than
 * `most` and fewer rows might fit. */
bool pb_value_put_column(struct pb_wire *m, const struct pb_value_type *t, duckdb_vector vector, idx_t from,
                         idx_t n, size_t most);
