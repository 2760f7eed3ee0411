/* plan: see plan.h. */
#include "engine/worker/plan.h"

#include "base/cleanup.h"
#include "engine/shared/sql_text.h"
#include "engine/worker/plan_impl.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_NEEDS = 64, MAX_NAMES = 1024, MAX_LEAVES = 32 };

/* What is needed of a table. */
struct plan_need {
    char schema[PLAN_NAME], name[PLAN_NAME];
    bool all;     /* some place reads it without a condition */
    char *filter; /* conditions of the places that read it, with OR between them; NULL: none yet */
    char *order;  /* ORDER BY and LIMIT of the only place that reads it; NULL: none */
    char *split;  /* groups instead of rows; NULL: rows */
};

struct planner {
    struct plan p;
    struct plan_need needs[MAX_NEEDS];
    unsigned nneeds;
    char names[MAX_NAMES][PLAN_NAME]; /* of columns, in lower case */
    unsigned nnames;
    bool all_columns;
    bool single; /* one statement */
    char *root;
    uint64_t cap;
    bool whole;  /* nothing may be split */
    bool clocks; /* cluster.clocks is read */
};

/* A table in a FROM. */
struct leaf {
    uint32_t node;
    bool may_push; /* rows that its conditions exclude affect no result */
};

struct leaves {
    struct leaf at[MAX_LEAVES];
    unsigned n, others; /* others: what is no table of ours (subqueries, functions) */
};

static char *join_texts(char *before, const char *between, const char *text)
{
    char *both;

    if (!text)
        return before;
    if (asprintf(&both, "%s%s%s", before ? before : "", before ? between : "", text) < 0)
        both = NULL;
    free(before);
    return both;
}

/* Tables of DuckDB's own and of the asking side are not the nodes'. */
static bool is_asked_of_nodes(const char *schema)
{
    return strcasecmp(schema, "information_schema") != 0 && strcasecmp(schema, "pg_catalog") != 0 &&
           strcasecmp(schema, "cluster") != 0;
}

/* NULL: it is none of the nodes', or there are too many (which read_tree finds). */
static struct plan_need *find_need(struct planner *x, uint32_t table)
{
    char schema[PLAN_NAME], name[PLAN_NAME];

    plan_text(&x->p, pb_json_get(x->p.j, table, "schema_name"), schema);
    plan_text(&x->p, pb_json_get(x->p.j, table, "table_name"), name);
    if (strcasecmp(schema, "main") == 0)
        schema[0] = '\0';
    x->clocks = x->clocks || (strcasecmp(schema, "cluster") == 0 && strcasecmp(name, "clocks") == 0);
    if (!name[0] || !is_asked_of_nodes(schema))
        return NULL;
    for (unsigned i = 0; i < x->nneeds; i++)
        if (strcasecmp(x->needs[i].schema, schema) == 0 && strcasecmp(x->needs[i].name, name) == 0)
            return &x->needs[i];
    if (x->nneeds == MAX_NEEDS)
        return NULL;
    struct plan_need *n = &x->needs[x->nneeds++];
    memcpy(n->schema, schema, sizeof(schema));
    memcpy(n->name, name, sizeof(name));
    return n;
}

static void collect_leaves(const struct plan *p, uint32_t node, bool may_push, struct leaves *ret)
{
    bool inner = plan_is(p, node, "join_type", "INNER"), left = plan_is(p, node, "join_type", "LEFT"),
         right = plan_is(p, node, "join_type", "RIGHT");

    if (plan_is(p, node, "type", "BASE_TABLE") && ret->n < MAX_LEAVES) {
        may_push = may_push && plan_is_null(p, pb_json_get(p->j, node, "sample")) &&
                   plan_is_empty(p, pb_json_get(p->j, node, "column_name_alias"));
        ret->at[ret->n++] = (struct leaf){node, may_push};
    } else if (plan_is(p, node, "type", "JOIN")) {
        may_push =
            may_push && (plan_is(p, node, "ref_type", "REGULAR") || plan_is(p, node, "ref_type", "CROSS") ||
                         plan_is(p, node, "ref_type", "NATURAL"));
        collect_leaves(p, pb_json_get(p->j, node, "left"), may_push && (inner || left), ret);
        collect_leaves(p, pb_json_get(p->j, node, "right"), may_push && (inner || right), ret);
    } else {
        ret->others++;
    }
}

static void alias_of(const struct plan *p, uint32_t table, char ret[PLAN_NAME])
{
    plan_text(p, pb_json_get(p->j, table, "alias"), ret);
    if (!ret[0])
        plan_text(p, pb_json_get(p->j, table, "table_name"), ret);
}

/* The conditions of a WHERE that a node can judge; kept: a tree of the others. Either is NULL where there are
 * none. */
static void sort_conditions(const struct plan *p, uint32_t where, const struct plan_scope *s,
                            char **ret_pushed, char **ret_kept)
{
    bool several = plan_is(p, where, "type", "CONJUNCTION_AND");
    char *pushed = NULL, *kept = NULL;

    *ret_pushed = *ret_kept = NULL;
    if (plan_is_null(p, where))
        return;
    for (uint32_t c = several ? plan_child(p, where, "children") : where; c;
         c = several ? p->j->nodes[c].next : 0) {
        size_t length;
        _cleanup_free_ char *text = plan_may_push(p, c, s, 0) ? plan_expression(p, c, s) : NULL, *tree = NULL;
        if (text) {
            pushed = join_texts(pushed, " AND ", text);
            continue;
        }
        const char *span = pb_json_span(p->j, c, &length);
        tree = strndup(span, length);
        kept = join_texts(kept, ",", tree);
    }
    *ret_pushed = pushed;
    *ret_kept = kept;
}

/* --- rows by their order --- */

static bool is_alias(const struct plan *p, uint32_t select, const char *name)
{
    char alias[PLAN_NAME];

    for (uint32_t c = plan_child(p, select, "select_list"); c; c = p->j->nodes[c].next) {
        plan_text(p, pb_json_get(p->j, c, "alias"), alias);
        if (strcasecmp(alias, name) == 0)
            return true;
    }
    return false;
}

static bool constant_of(const struct plan *p, uint32_t node, uint64_t *ret)
{
    uint32_t value = pb_json_get(p->j, node, "value");
    char text[PLAN_NAME];

    if (plan_is_null(p, node)) {
        *ret = 0;
        return true;
    }
    if (!plan_is(p, node, "class", "CONSTANT") ||
        pb_json_text(p->j, pb_json_get(p->j, value, "value"), text, sizeof(text)) <= 0 ||
        !isdigit((unsigned char)text[0]) || strlen(text) > 15)
        return false;
    *ret = strtoull(text, NULL, 10);
    return true;
}

static char *order_text(const struct plan *p, uint32_t select, uint32_t modifier, const struct plan_scope *s)
{
    char *all = NULL, name[PLAN_NAME];

    for (uint32_t c = plan_child(p, modifier, "orders"); c; c = p->j->nodes[c].next) {
        uint32_t expression = pb_json_get(p->j, c, "expression");
        _cleanup_free_ char *text = NULL, *one = NULL;
        if (plan_column(p, expression, s, name) && !is_alias(p, select, name) &&
            plan_may_push(p, expression, s, 0))
            text = plan_expression(p, expression, s);
        const char *way = plan_is(p, c, "type", "DESCENDING") ? " DESC" : "";
        if (!text || !plan_is(p, c, "null_order", "ORDER_DEFAULT") || asprintf(&one, "%s%s", text, way) < 0) {
            free(all);
            return NULL;
        }
        all = join_texts(all, ", ", one);
    }
    return all;
}

/* The LIMIT that a node may apply to its rows, with the order it picks them by; NULL: none. */
static char *limit_text(const struct plan *p, uint32_t select, const struct plan_scope *s, uint64_t cap)
{
    _cleanup_free_ char *order = NULL;
    uint64_t limit = 0, offset = 0;
    bool limited = false;
    char *text;

    if (!plan_is_empty(p, pb_json_get(p->j, select, "group_expressions")) ||
        !plan_is(p, select, "aggregate_handling", "STANDARD_HANDLING") ||
        !plan_is_null(p, pb_json_get(p->j, select, "qualify")) ||
        !plan_is_null(p, pb_json_get(p->j, select, "having")) ||
        !plan_is_null(p, pb_json_get(p->j, select, "sample")))
        return NULL;
    for (uint32_t c = plan_child(p, select, "select_list"); c; c = p->j->nodes[c].next)
        if (!plan_is(p, c, "class", "STAR") && !plan_may_push(p, c, s, 0) &&
            !plan_is(p, c, "class", "COLUMN_REF"))
            return NULL;
    for (uint32_t c = plan_child(p, select, "modifiers"); c; c = p->j->nodes[c].next) {
        if (plan_is(p, c, "type", "ORDER_MODIFIER") && !order && !limited) {
            order = order_text(p, select, c, s);
            if (!order)
                return NULL;
        } else if (plan_is(p, c, "type", "LIMIT_MODIFIER") && !limited &&
                   !plan_is_null(p, pb_json_get(p->j, c, "limit")) &&
                   constant_of(p, pb_json_get(p->j, c, "limit"), &limit) &&
                   constant_of(p, pb_json_get(p->j, c, "offset"), &offset)) {
            limited = true;
        } else {
            return NULL;
        }
    }
    if (!limited || limit + offset > cap ||
        asprintf(&text, "%s%s LIMIT %" PRIu64, order ? " ORDER BY " : "", order ? order : "",
                 limit + offset) < 0)
        return NULL;
    return text;
}

/* --- a tree --- */

static void put_name(FILE *out, const char *name)
{
    bool plain = name[0] && !isdigit((unsigned char)name[0]);

    for (const char *c = name; *c; c++)
        plain = plain && (isalnum((unsigned char)*c) || *c == '_');
    if (plain)
        fputs(name, out);
    else
        pb_put_quoted(out, name, '"');
}

static char *from_text(const struct plan_need *n)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    if (n->schema[0]) {
        put_name(out, n->schema);
        fputc('.', out);
    }
    put_name(out, n->name);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* One SELECT, of one table, and nothing else in the statement. */
static bool is_only_select(const struct planner *x, uint32_t select)
{
    uint32_t statements = pb_json_get(x->p.j, 1, "statements");

    if (!x->single || pb_json_get(x->p.j, x->p.j->nodes[statements].child, "node") != select)
        return false;
    for (uint32_t i = 1; i < x->p.j->n; i++)
        if (i != select &&
            (plan_is(&x->p, i, "type", "SELECT_NODE") || plan_is(&x->p, i, "class", "SUBQUERY")))
            return false;
    return true;
}

static void plan_only_table(struct planner *x, uint32_t select, struct plan_need *n,
                            const struct plan_scope *s, const char *pushed, const char *kept)
{
    _cleanup_free_ char *from = from_text(n);

    if (!x->whole && from && !x->root &&
        !plan_split(&x->p, select, s, from, pushed, kept, x->cap, &n->split, &x->root))
        n->split = NULL;
    if (!n->split && !kept)
        n->order = limit_text(&x->p, select, s, x->cap);
}

static void read_select(struct planner *x, uint32_t select)
{
    const struct plan *p = &x->p;
    uint32_t where = pb_json_get(p->j, select, "where_clause");
    struct leaves leaves = {0};

    collect_leaves(p, pb_json_get(p->j, select, "from_table"),
                   plan_is_null(p, pb_json_get(p->j, select, "sample")), &leaves);
    for (unsigned i = 0; i < leaves.n; i++) {
        struct plan_need *n = find_need(x, leaves.at[i].node);
        _cleanup_free_ char *pushed = NULL, *kept = NULL;
        char alias[PLAN_NAME];
        if (!n)
            continue;
        alias_of(p, leaves.at[i].node, alias);
        struct plan_scope scope = {.alias = alias, .alone = leaves.n == 1 && leaves.others == 0};
        if (leaves.at[i].may_push)
            sort_conditions(p, where, &scope, &pushed, &kept);
        if (!pushed)
            n->all = true;
        else
            n->filter = join_texts(n->filter, " OR ", pushed);
        if (leaves.at[i].may_push && scope.alone && is_only_select(x, select))
            plan_only_table(x, select, n, &scope, pushed, kept);
    }
}

/* Tables outside of a SELECT's own FROM (PIVOT, SHOW) are sent whole. */
static void read_tables(struct planner *x, uint32_t node, bool in_from, unsigned depth)
{
    const struct plan *p = &x->p;
    bool select = plan_is(p, node, "type", "SELECT_NODE"), join = plan_is(p, node, "type", "JOIN");

    if (select)
        read_select(x, node);
    if (!in_from && plan_is(p, node, "type", "BASE_TABLE")) {
        struct plan_need *n = find_need(x, node);
        if (n)
            n->all = true;
    }
    for (uint32_t c = p->j->nodes[node].child; c && depth < 4000; c = p->j->nodes[c].next) {
        const struct pb_json_node *n = &p->j->nodes[c];
        if (n->kind != '{' && n->kind != '[')
            continue;
        bool from = (select && n->key_length == 10 && memcmp(n->key, "from_table", 10) == 0) ||
                    (in_from && join && n->key && (n->key[0] == 'l' || n->key[0] == 'r'));
        read_tables(x, c, from, depth + 1);
    }
}

static void add_name(struct planner *x, uint32_t node)
{
    char name[PLAN_NAME];

    if (x->p.j->nodes[node].length >= PLAN_NAME || x->nnames == MAX_NAMES) {
        x->all_columns = true;
        return;
    }
    plan_text(&x->p, node, name);
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    for (unsigned i = 0; i < x->nnames; i++)
        if (strcmp(x->names[i], name) == 0)
            return;
    memcpy(x->names[x->nnames++], name, sizeof(name));
}

/* A table's name where a column could stand is a whole row of it. */
static bool is_row_of_a_table(const struct plan *p, uint32_t name)
{
    char text[PLAN_NAME], alias[PLAN_NAME];

    plan_text(p, name, text);
    for (uint32_t i = 1; i < p->j->n; i++)
        if (plan_is(p, i, "type", "BASE_TABLE")) {
            alias_of(p, i, alias);
            if (strcasecmp(alias, text) == 0)
                return true;
        }
    return false;
}

static void read_columns(struct planner *x)
{
    const struct plan *p = &x->p;

    for (uint32_t i = 1; i < p->j->n; i++) {
        if (plan_is(p, i, "class", "STAR") || plan_is(p, i, "type", "PIVOT") ||
            plan_is(p, i, "type", "SHOW_REF") || plan_is(p, i, "ref_type", "NATURAL") ||
            plan_is(p, i, "class", "POSITIONAL_REFERENCE") ||
            !plan_is_empty(p, pb_json_get(p->j, i, "column_name_alias")))
            x->all_columns = true;
        uint32_t first = plan_child(p, i, "column_names");
        if (first && !p->j->nodes[first].next && is_row_of_a_table(p, first))
            x->all_columns = true;
        for (uint32_t c = first; c; c = p->j->nodes[c].next)
            add_name(x, c);
        for (uint32_t c = plan_child(p, i, "using_columns"); c; c = p->j->nodes[c].next)
            add_name(x, c);
    }
}

static int read_tree(struct planner *x, const char *sql, struct pb_err *err)
{
    _cleanup_free_ char *tree = NULL;
    struct pb_json j = {0};
    char why[256];

    int r = pb_engine_tree(x->p.e, sql, &tree);
    if (r == 0)
        r = pb_json_parse(tree, strlen(tree), &j);
    if (r < 0)
        return pb_fail(err, r, "the statement cannot be taken apart: %s", strerror(-r));
    x->p.j = &j;
    if (!pb_json_get(&j, 1, "statements")) {
        bool other = pb_json_text(&j, pb_json_get(&j, 1, "error_message"), why, sizeof(why)) < 0 ||
                     strstr(why, "Only SELECT statements");
        r = pb_fail(err, -EINVAL, "%s",
                    other
                        ? "over ranks only SELECT, WITH, FROM, DESCRIBE and SUMMARIZE run; a PIVOT goes into "
                          "FROM (PIVOT ...) with its values listed"
                        : why);
    } else {
        read_tables(x, 1, false, 0);
        read_columns(x);
        if (x->nneeds == MAX_NEEDS)
            r = pb_fail(err, -E2BIG, "the statement reads more than %d tables", MAX_NEEDS - 1);
    }
    pb_json_done(&j);
    x->p.j = NULL;
    return r;
}

/* --- the statements for the nodes --- */

static void put_rows(const struct planner *x, const struct plan_need *n, FILE *out)
{
    _cleanup_free_ char *from = from_text(n);

    if (x->all_columns) {
        fputs("SELECT *", out);
    } else {
        fputs("SELECT COLUMNS(lambda c: lower(c) IN ('rank', 'target_pid'", out);
        for (unsigned i = 0; i < x->nnames; i++) {
            fputs(", ", out);
            pb_put_quoted(out, x->names[i], '\'');
        }
        fputs("))", out);
    }
    fprintf(out, " FROM %s", from ? from : "");
}

static void put_need(const struct planner *x, const struct plan_need *n, bool fallback, FILE *out)
{
    if (n->split) {
        fputs(fallback ? "" : n->split, out);
        return;
    }
    put_rows(x, n, out);
    if (!fallback && !n->all && n->filter)
        fprintf(out, " WHERE %s", n->filter);
    if (!fallback && n->order)
        fputs(n->order, out);
    else
        fprintf(out, " LIMIT %" PRIu64, x->cap + 1);
}

static void put_text_of_need(const struct planner *x, const struct plan_need *n, bool fallback, FILE *out)
{
    _cleanup_free_ char *text = NULL;
    size_t size;
    FILE *memory = open_memstream(&text, &size);

    if (!memory)
        return;
    put_need(x, n, fallback, memory);
    if (fclose(memory) == 0)
        pb_put_quoted(out, text, '\'');
}

static int send_plan(const struct planner *x, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    size_t size;
    FILE *out = open_memstream(&sql, &size);

    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    fprintf(out, "SELECT * FROM (VALUES ('%s', '', ", x->clocks ? "clocks" : "");
    pb_put_quoted(out, x->root ? x->root : "", '\'');
    fputs(", '')", out);
    for (unsigned i = 0; i < x->nneeds; i++) {
        fputs(", (", out);
        pb_put_quoted(out, x->needs[i].schema, '\'');
        fputs(", ", out);
        pb_put_quoted(out, x->needs[i].name, '\'');
        fputs(", ", out);
        put_text_of_need(x, &x->needs[i], false, out);
        fputs(", ", out);
        put_text_of_need(x, &x->needs[i], true, out);
        fputs(")", out);
    }
    fputs(") t(schema, name, sql, fallback)", out);
    if (fclose(out) != 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_engine_do(x->p.e, "BEGIN TRANSACTION READ ONLY", err);
    return r < 0 ? r : pb_statement_run(x->p.e, sql, err);
}

void pb_plan_moment(int64_t us, char ret[40])
{
    time_t s = (time_t)(us / 1000000);
    char text[24];
    struct tm tm;

    if (!gmtime_r(&s, &tm) || strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm) == 0)
        strcpy(text, "1970-01-01 00:00:00");
    snprintf(ret, 40, "%s.%06d", text, (int)(us % 1000000));
}

/* Names of the functions of single values that always give the same. */
static int learn_functions(struct pb_engine *e, struct pb_err *err)
{
    if (e->functions)
        return 0;
    return pb_engine_ask(e,
                         "SELECT chr(10) || string_agg(name, chr(10)) || chr(10) FROM (SELECT "
                         "lower(function_name) AS name FROM duckdb_functions() WHERE function_type IN "
                         "('scalar', 'aggregate', 'macro') AND database_name = 'system' GROUP BY ALL HAVING "
                         "bool_and(function_type = 'scalar' AND stability = 'CONSISTENT'))",
                         NULL, 0, &e->functions, err);
}

int pb_plan_send(struct pb_engine *e, char *const *statements, size_t n, struct pb_err *err)
{
    const struct pb_engine_request *q = e->request;
    struct planner *x = calloc(1, sizeof(*x));

    if (!x)
        return pb_fail(err, -ENOMEM, "out of memory");
    x->p.e = e;
    x->single = n == 1;
    x->cap = q->cap;
    x->whole = q->whole;
    pb_plan_moment((int64_t)q->now_us, x->p.moment);
    int r = learn_functions(e, err);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = read_tree(x, statements[i], err);
    if (r == 0)
        r = send_plan(x, err);
    for (unsigned i = 0; i < x->nneeds; i++) {
        free(x->needs[i].filter);
        free(x->needs[i].order);
        free(x->needs[i].split);
    }
    free(x->root);
    free(x);
    return r;
}
