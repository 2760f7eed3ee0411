/* need: tables that the broker makes at the moment of a query, because a statement names them.
 *
 * The worker asks by name (PB_SQL_NEED) and gets an arena from each source. Tables that the tool reads are in
 * the catalog from the beginning, with their columns. A table that a function of the program gives is not: it
 * is added when DuckDB's tree of a statement has its name, or, where the tree hides names (PIVOT,
 * query('...')), when DuckDB looks for it. */
#pragma once

#include "base/json.h"
#include "engine/worker/engine_impl.h"

/* Gets a live table of the catalog. */
int pb_need_live(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);

/* Whether the names in a statement matter: a function of the process gives tables, or rows are archived. */
bool pb_need_names_matter(const struct pb_engine *e);

/* Notes the tables that a statement names. tree: of the statement; NULL: it has none, and may name any, with
 * any of their columns. */
void pb_need_names(struct pb_engine *e, const struct pb_json *tree);

/* Adds tables that the catalog lacks and a function of the process provides. A function that fails is an
 * error; an unknown name is not: DuckDB will refuse it. */
int pb_need_missing(struct pb_engine *e, struct pb_err *err);

/* Lets DuckDB ask for a table that it does not find, in a statement whose tree hides names. */
void pb_need_register(struct pb_engine *e);
