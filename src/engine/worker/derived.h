/* derived: additional columns of a table in SQL, computed from the recorded ones. */
#pragma once

#include <stdbool.h>

struct pb_cat_table;

/* Whether the table has derived columns. */
bool pb_derived_is(const struct pb_cat_table *t);

/* Whether its rows are made of those of the other table too. */
bool pb_derived_uses(const struct pb_cat_table *t, const struct pb_cat_table *other);

/* A SELECT over `rows` (a SELECT of the recorded columns) with the derived columns added, on the heap; NULL:
 * out of memory. ranks: rows of several processes, identified by rank and target_pid. */
char *pb_derived_select(const struct pb_cat_table *t, const char *rows, bool ranks);
