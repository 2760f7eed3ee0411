/* bounds: see bounds.h. */
#include "engine/shared/bounds.h"

#include "base/json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Evaluating a constant costs a query of its own: a statement with very many gets no bounds. */
enum { NAME_SIZE = 64, MAX_TABLES = 32, MAX_EVALUATED = 64 };

/* Rows may be written between our reading of the clock and the statement's own. */
static const int64_t SLACK_NS = 60000000000;
/* Times are stored in ns and shown in us. */
static const int64_t ROUND_NS = 1000;

struct base_table {
    char schema[NAME_SIZE], name[NAME_SIZE], alias[NAME_SIZE];
    const char *time_column;
    bool usable; /* its columns have their own names, and rows outside the WHERE do not matter */
};

struct finder {
    const struct pb_json *j;
    const struct pb_bounds_ops *ops;
    unsigned evaluated;
};

/* The tables in one FROM. */
struct from {
    struct base_table at[MAX_TABLES];
    unsigned n;
    bool blocked; /* joined in a way in which a filtered row still affects others */
};

static void copy_text(const struct pb_json *j, uint32_t node, char ret[NAME_SIZE])
{
    ret[0] = '\0';
    if (node && j->nodes[node].kind == '"')
        snprintf(ret, NAME_SIZE, "%.*s", (int)j->nodes[node].length, j->nodes[node].at);
}

static bool is_null(const struct pb_json *j, uint32_t node)
{
    return !node || (j->nodes[node].kind == 0 && strncmp(j->nodes[node].at, "null", 4) == 0);
}

static bool is_empty(const struct pb_json *j, uint32_t node)
{
    return !node || (j->nodes[node].kind == '[' && !j->nodes[node].child);
}

static bool is_one_of(const struct pb_json *j, uint32_t node, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (pb_json_is(j, node, names[i]))
            return true;
    return false;
}

static void add_base_table(struct finder *f, uint32_t node, struct from *from)
{
    const struct pb_json *j = f->j;
    struct base_table t = {0};

    copy_text(j, pb_json_get(j, node, "schema_name"), t.schema);
    copy_text(j, pb_json_get(j, node, "table_name"), t.name);
    copy_text(j, pb_json_get(j, node, "alias"), t.alias);
    t.time_column = f->ops->time_column(f->ops->arg, t.schema, t.name);
    if (!t.time_column)
        return;
    t.usable = t.time_column[0] && is_null(j, pb_json_get(j, node, "sample")) &&
               is_empty(j, pb_json_get(j, node, "column_name_alias"));
    if (from->n == MAX_TABLES)
        f->ops->touch(f->ops->arg, t.schema, t.name, PB_RANGE_ALL);
    else
        from->at[from->n++] = t;
}

static void collect_from(struct finder *f, uint32_t node, struct from *from)
{
    const struct pb_json *j = f->j;
    uint32_t type = pb_json_get(j, node, "type");

    if (pb_json_is(j, type, "BASE_TABLE")) {
        add_base_table(f, node, from);
    } else if (pb_json_is(j, type, "JOIN")) {
        uint32_t kind = pb_json_get(j, node, "ref_type"), join = pb_json_get(j, node, "join_type");
        if (!pb_json_is(j, kind, "REGULAR") && !pb_json_is(j, kind, "CROSS") &&
            !pb_json_is(j, kind, "NATURAL"))
            from->blocked = true;
        if (pb_json_is(j, join, "SEMI") || pb_json_is(j, join, "ANTI"))
            from->blocked = true;
        collect_from(f, pb_json_get(j, node, "left"), from);
        collect_from(f, pb_json_get(j, node, "right"), from);
    }
}

/* Functions that give the same value for every row of a statement, and later values for later times. */
static bool is_constant_function(const struct pb_json *j, uint32_t name)
{
    static const char *const names[] = {"+",
                                        "-",
                                        "*",
                                        "/",
                                        "to_years",
                                        "to_months",
                                        "to_weeks",
                                        "to_days",
                                        "to_hours",
                                        "to_minutes",
                                        "to_seconds",
                                        "to_milliseconds",
                                        "to_microseconds",
                                        "trunc", /* INTERVAL 1 DAY is to_days(trunc(1)) */
                                        "date_trunc",
                                        "make_timestamp",
                                        "make_date",
                                        "epoch_ms",
                                        "to_timestamp",
                                        "strptime",
                                        "timezone"};

    return is_one_of(j, name, names, sizeof(names) / sizeof(names[0]));
}

static bool is_clock_function(const struct pb_json *j, uint32_t name)
{
    static const char *const names[] = {"now", "get_current_timestamp", "current_timestamp", "today",
                                        "current_date"};

    return is_one_of(j, name, names, sizeof(names) / sizeof(names[0]));
}

static bool is_current_timestamp(const struct pb_json *j, uint32_t node)
{
    uint32_t names = pb_json_get(j, node, "column_names");
    uint32_t only = names ? j->nodes[names].child : 0;
    return only && !j->nodes[only].next &&
           (pb_json_is(j, only, "current_timestamp") || pb_json_is(j, only, "current_date"));
}

/* Whether it is a constant; *clock: it depends on the time of day. Our clock is read before the statement's:
 * a value that decreases with time would give too narrow a bound. */
static bool is_constant(const struct pb_json *j, uint32_t node, bool *clock, unsigned depth)
{
    uint32_t class = pb_json_get(j, node, "class"), function = pb_json_get(j, node, "function_name");

    if (depth > 200)
        return false;
    if (pb_json_is(j, class, "CONSTANT"))
        return true;
    if (pb_json_is(j, class, "CAST"))
        return is_constant(j, pb_json_get(j, node, "child"), clock, depth + 1);
    if ((pb_json_is(j, class, "COLUMN_REF") && is_current_timestamp(j, node)) ||
        (pb_json_is(j, class, "FUNCTION") && is_clock_function(j, function))) {
        *clock = true;
        return true;
    }
    if (!pb_json_is(j, class, "FUNCTION") || !is_constant_function(j, function))
        return false;
    uint32_t children = pb_json_get(j, node, "children"), first = children ? j->nodes[children].child : 0;
    for (uint32_t c = first; c; c = j->nodes[c].next) {
        bool of_clock = false;
        if (!is_constant(j, c, &of_clock, depth + 1))
            return false;
        if (of_clock && (pb_json_is(j, function, "*") || pb_json_is(j, function, "/") ||
                         (pb_json_is(j, function, "-") && (c != first || !j->nodes[c].next))))
            return false;
        *clock = *clock || of_clock;
    }
    return true;
}

/* Whether the expression is the time column of this table. */
static bool is_time_of(const struct pb_json *j, uint32_t node, const struct base_table *t)
{
    uint32_t names = pb_json_get(j, node, "column_names"), last = 0, before = 0;
    char column[NAME_SIZE], owner[NAME_SIZE];

    if (!pb_json_is(j, pb_json_get(j, node, "class"), "COLUMN_REF") || !names)
        return false;
    for (uint32_t c = j->nodes[names].child; c; c = j->nodes[c].next) {
        before = last;
        last = c;
    }
    copy_text(j, last, column);
    copy_text(j, before, owner);
    if (strcasecmp(column, t->time_column) != 0)
        return false;
    return !before || strcasecmp(owner, t->alias[0] ? t->alias : t->name) == 0;
}

static int64_t add_saturated(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

/* Narrows a range by "time > expression" (lower) or "time < expression" (upper); equality does both. */
static void narrow_range(struct finder *f, uint32_t expression, bool lower, bool upper,
                         struct pb_time_range *range)
{
    bool clock = false;
    size_t length;
    int64_t at;

    if (f->evaluated == MAX_EVALUATED || !is_constant(f->j, expression, &clock, 0))
        return;
    f->evaluated++;
    const char *text = pb_json_span(f->j, expression, &length);
    if (f->ops->evaluate(f->ops->arg, text, length, &at) < 0)
        return;
    if (lower && add_saturated(at, -ROUND_NS) > range->from)
        range->from = add_saturated(at, -ROUND_NS);
    if (upper && add_saturated(at, ROUND_NS + (clock ? SLACK_NS : 0)) < range->to)
        range->to = add_saturated(at, ROUND_NS + (clock ? SLACK_NS : 0));
}

static void narrow_by_comparison(struct finder *f, uint32_t node, const struct base_table *t,
                                 struct pb_time_range *range)
{
    const struct pb_json *j = f->j;
    uint32_t type = pb_json_get(j, node, "type"), left = pb_json_get(j, node, "left"),
             right = pb_json_get(j, node, "right");
    bool greater =
        pb_json_is(j, type, "COMPARE_GREATERTHAN") || pb_json_is(j, type, "COMPARE_GREATERTHANOREQUALTO");
    bool less = pb_json_is(j, type, "COMPARE_LESSTHAN") || pb_json_is(j, type, "COMPARE_LESSTHANOREQUALTO");
    bool equal = pb_json_is(j, type, "COMPARE_EQUAL");

    if (is_time_of(j, left, t))
        narrow_range(f, right, greater || equal, less || equal, range);
    else if (is_time_of(j, right, t))
        narrow_range(f, left, less || equal, greater || equal, range);
}

static struct pb_time_range range_of(struct finder *f, uint32_t node, const struct base_table *t,
                                     unsigned depth)
{
    const struct pb_json *j = f->j;
    struct pb_time_range range = PB_RANGE_ALL;
    uint32_t class = pb_json_get(j, node, "class"), children = pb_json_get(j, node, "children");

    if (depth > 200)
        return range;
    if (pb_json_is(j, class, "COMPARISON")) {
        narrow_by_comparison(f, node, t, &range);
    } else if (pb_json_is(j, class, "BETWEEN") && is_time_of(j, pb_json_get(j, node, "input"), t)) {
        narrow_range(f, pb_json_get(j, node, "lower"), true, false, &range);
        narrow_range(f, pb_json_get(j, node, "upper"), false, true, &range);
    } else if (pb_json_is(j, class, "CONJUNCTION")) {
        bool both = pb_json_is(j, pb_json_get(j, node, "type"), "CONJUNCTION_AND");
        struct pb_time_range all = both ? PB_RANGE_ALL : (struct pb_time_range){INT64_MAX, INT64_MIN};
        for (uint32_t c = children ? j->nodes[children].child : 0; c; c = j->nodes[c].next) {
            struct pb_time_range one = range_of(f, c, t, depth + 1);
            if (both ? one.from > all.from : one.from < all.from)
                all.from = one.from;
            if (both ? one.to < all.to : one.to > all.to)
                all.to = one.to;
        }
        range = all;
    }
    return range;
}

static void walk_select(struct finder *f, uint32_t node)
{
    const struct pb_json *j = f->j;
    uint32_t where = pb_json_get(j, node, "where_clause");
    struct from from = {0};

    collect_from(f, pb_json_get(j, node, "from_table"), &from);
    bool sampled = !is_null(j, pb_json_get(j, node, "sample"));
    for (unsigned i = 0; i < from.n; i++) {
        struct base_table *t = &from.at[i];
        bool use = t->usable && !from.blocked && !sampled && !is_null(j, where);
        f->ops->touch(f->ops->arg, t->schema, t->name, use ? range_of(f, where, t, 0) : PB_RANGE_ALL);
    }
}

/* A table named outside a SELECT's own FROM tree (PIVOT, SHOW, lateral joins) is read whole. */
static void walk_tree(struct finder *f, uint32_t node, bool in_from, unsigned depth)
{
    const struct pb_json *j = f->j;
    uint32_t type = pb_json_get(j, node, "type");
    bool select = pb_json_is(j, type, "SELECT_NODE"), join = pb_json_is(j, type, "JOIN");

    if (select)
        walk_select(f, node);
    if (!in_from && pb_json_is(j, type, "BASE_TABLE")) {
        struct from from = {0};
        add_base_table(f, node, &from);
        for (unsigned i = 0; i < from.n; i++)
            f->ops->touch(f->ops->arg, from.at[i].schema, from.at[i].name, PB_RANGE_ALL);
    }
    for (uint32_t c = j->nodes[node].child; c && depth < 4000; c = j->nodes[c].next) {
        const struct pb_json_node *n = &j->nodes[c];
        if (n->kind != '{' && n->kind != '[')
            continue;
        bool from = (select && n->key_length == 10 && memcmp(n->key, "from_table", 10) == 0) ||
                    (in_from && join && n->key_length >= 4 && (n->key[0] == 'l' || n->key[0] == 'r'));
        walk_tree(f, c, from, depth + 1);
    }
}

int pb_bounds_find(const struct pb_json *tree, const struct pb_bounds_ops *ops)
{
    struct finder f = {.j = tree, .ops = ops};

    if (!pb_json_get(tree, 1, "statements"))
        return -EBADMSG;
    walk_tree(&f, 1, false, 0);
    return 0;
}

/* --- columns and order --- */

static bool is_text(const struct pb_json_node *n, const char *text, size_t length)
{
    return n->kind == '"' && n->length == length && strncasecmp(n->at, text, length) == 0;
}

int pb_bounds_names(const struct pb_json *tree, const char *column)
{
    size_t length = strlen(column);

    for (uint32_t i = 1; i < tree->n; i++) {
        const struct pb_json_node *n = &tree->nodes[i];
        if (is_text(n, column, length))
            return true;
        /* The classes of *, of COLUMNS('...'), and of statements that summarize or pivot a whole table. */
        if (is_text(n, "STAR", 4) || is_text(n, "PIVOT", 5) || is_text(n, "SHOW_REF", 8) ||
            is_text(n, "NATURAL", 7))
            return true;
    }
    return false;
}

unsigned pb_bounds_mentions(const struct pb_json *tree, const char *text)
{
    unsigned n = 0;

    for (uint32_t i = 1; i < tree->n; i++)
        n += is_text(&tree->nodes[i], text, strlen(text));
    return n;
}

static bool has_aggregate(const struct pb_json *j, uint32_t node, unsigned depth)
{
    static const char *const good[] = {
        "count",    "count_star",    "sum",      "avg",           "min",
        "max",      "stddev",        "median",   "quantile_cont", "approx_count_distinct",
        "var_samp", "quantile_disc", "count_if", "bool_or",       "bool_and"};

    /* Aggregates of a subquery are not those of its SELECT. */
    if (depth > 200 || pb_json_is(j, pb_json_get(j, node, "type"), "SELECT_NODE"))
        return false;
    if (is_one_of(j, pb_json_get(j, node, "function_name"), good, sizeof(good) / sizeof(good[0])))
        return true;
    for (uint32_t c = node ? j->nodes[node].child : 0; c; c = j->nodes[c].next)
        if (has_aggregate(j, c, depth + 1))
            return true;
    return false;
}

/* Whether the modifiers of a SELECT pick rows by order: DISTINCT ON, or LIMIT (except that of the outermost
 * SELECT, which applies after its aggregates). */
static bool picks_rows(const struct pb_json *j, uint32_t modifiers, bool outermost)
{
    for (uint32_t c = modifiers ? j->nodes[modifiers].child : 0; c; c = j->nodes[c].next) {
        uint32_t type = pb_json_get(j, c, "type");
        if (!outermost &&
            (pb_json_is(j, type, "LIMIT_MODIFIER") || pb_json_is(j, type, "LIMIT_PERCENT_MODIFIER")))
            return true;
        if (!is_empty(j, pb_json_get(j, c, "distinct_on_targets")))
            return true;
    }
    return false;
}

int pb_bounds_any_order(const struct pb_json *tree)
{
    static const char *const bad[] = {"list",       "array_agg",    "first",     "last",    "any_value",
                                      "string_agg", "group_concat", "arbitrary", "arg_min", "arg_max",
                                      "listagg",    "mode",         "histogram"};
    uint32_t statements = pb_json_get(tree, 1, "statements"),
             node = statements ? pb_json_get(tree, tree->nodes[statements].child, "node") : 0;

    /* The rows must end in an aggregate of the outermost SELECT that does not depend on their order. */
    if (!pb_json_is(tree, pb_json_get(tree, node, "type"), "SELECT_NODE") ||
        (is_empty(tree, pb_json_get(tree, node, "group_expressions")) &&
         !has_aggregate(tree, pb_json_get(tree, node, "select_list"), 0)))
        return false;
    for (uint32_t i = 1; i < tree->n; i++)
        if (pb_json_is(tree, pb_json_get(tree, i, "class"), "WINDOW") ||
            picks_rows(tree, pb_json_get(tree, i, "modifiers"), i == node) ||
            is_one_of(tree, pb_json_get(tree, i, "function_name"), bad, sizeof(bad) / sizeof(bad[0])))
            return false;
    return true;
}
