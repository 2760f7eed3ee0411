/* node_rows: a statement over rows that nodes sent, as tables of DuckDB's own.
 *
 * The rows come as the nodes' workers put them (cells.h), and are taken for hostile: types, sizes and texts
 * are checked before DuckDB sees them. rank, node and role lead each table; nodes whose columns differ are
 * brought together by name, as long as one type holds what all of them sent. */
#pragma once

#include "engine/worker/engine_impl.h"

/* Reads the rows until the caller sends the end, and makes the tables and views. */
int pb_node_rows_begin(struct pb_engine *e, struct pb_err *err);

/* Forgets them all: the next request finds the database as it was. */
void pb_node_rows_end(struct pb_engine *e);
