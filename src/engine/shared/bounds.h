/* bounds: which tables a statement reads, and between which times, from its syntax tree.
 *
 * A superset: segments outside the range are not read, the WHERE clause stays and decides. A bound is used
 * only where every row outside it is certain to be filtered out: comparisons of a table's own time column
 * with a constant, joined by AND and OR, in the WHERE of the SELECT that names the table. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_time_range {
    int64_t from, to; /* UTC ns, inclusive; INT64_MIN and INT64_MAX where there is no bound */
};

#define PB_RANGE_ALL ((struct pb_time_range){INT64_MIN, INT64_MAX})

struct pb_bounds_ops {
    /* The time column of a table, "" where it has none, NULL where the table is not ours. */
    const char *(*time_column)(void *arg, const char *schema, const char *table);
    /* The UTC time in ns of a constant expression (part of the tree). Negative: none. */
    int (*evaluate)(void *arg, const char *expression, size_t length, int64_t *ret);
    /* Called for each place that reads a table of ours. */
    void (*touch)(void *arg, const char *schema, const char *table, struct pb_time_range range);
    void *arg;
};

/* Whether the statement names this column, or may mean it without a name (*, COLUMNS, a whole row). A
 * superset: a table, an alias or a text of that name counts too. */
struct pb_json;
int pb_bounds_names(const struct pb_json *tree, const char *column);

/* How often a text occurs in the tree. */
unsigned pb_bounds_mentions(const struct pb_json *tree, const char *text);

/* Whether the rows may be read in any order: it aggregates, and no aggregate depends on the order. */
int pb_bounds_any_order(const struct pb_json *tree);

/* tree: the result of json_serialize_sql. -EBADMSG: it is not such a tree. */
int pb_bounds_find(const struct pb_json *tree, const struct pb_bounds_ops *ops);
