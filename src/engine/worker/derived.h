/* derived: columns that SQL shows of a table beside those that were recorded, made of them. */
#pragma once

#include <stdbool.h>

struct pb_cat_table;

/* Whether the table has such columns. */
bool pb_derived_is(const struct pb_cat_table *t);

/* A SELECT over `rows` (a SELECT of the recorded columns) that has them too, on the heap; NULL: out of
 * memory. ranks: rows of several processes, which rank and target_pid tell apart. */
char *pb_derived_select(const struct pb_cat_table *t, const char *rows, bool ranks);
