/* prepare: before a statement runs: finds its tables and their time ranges in the syntax tree, has the broker
 * read live tables, and takes a snapshot of each. */
#include "engine/worker/engine_impl.h"

#include "base/cleanup.h"
#include "base/json.h"
#include "engine/shared/bounds.h"
#include "engine/shared/known.h"
#include "engine/worker/archive_scan.h"
#include "engine/worker/derived.h"
#include "engine/worker/need.h"
#include "engine/worker/scan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A tree is about a hundred times as large as its statement. */
enum { MAX_TREE_SQL = 256 << 10 };

static const char *time_column(void *arg, const char *schema, const char *table)
{
    struct pb_engine *e = arg;
    struct pb_cat_table *t = pb_catalog_find(&e->request->catalog, schema, table);
    return !t ? NULL : t->time_column < 0 ? "" : t->columns[t->time_column].name;
}

/* A statement's tree around one expression. */
#define TREE_HEAD                                                                                            \
    "{\"error\":false,\"statements\":[{\"node\":{\"type\":\"SELECT_NODE\",\"modifiers\":[],\"cte_map\":"     \
    "{\"map\":[]},\"select_list\":["
#define TREE_TAIL                                                                                            \
    "],\"from_table\":{\"type\":\"EMPTY\",\"alias\":\"\",\"sample\":null,\"query_location\":"                \
    "18446744073709551615},\"where_clause\":null,\"group_expressions\":[],\"group_sets\":[],"                \
    "\"aggregate_handling\":\"STANDARD_HANDLING\",\"having\":null,\"sample\":null,\"qualify\":null},"        \
    "\"named_param_map\":[]}]}"

int pb_engine_print(struct pb_engine *e, const char *expression, size_t length, char **ret)
{
    _cleanup_free_ char *tree = NULL;

    *ret = NULL;
    if (asprintf(&tree, "%s%.*s%s", TREE_HEAD, (int)length, expression, TREE_TAIL) < 0) {
        tree = NULL;
        return -ENOMEM;
    }
    int r = pb_engine_ask(e, "SELECT json_deserialize_sql($1::JSON)", tree, strlen(tree), ret, NULL);
    return r < 0 ? r : *ret ? 0 : -EINVAL;
}

static int evaluate_constant(void *arg, const char *expression, size_t length, int64_t *ret)
{
    struct pb_engine *e = arg;
    _cleanup_free_ char *text = NULL, *sql = NULL, *value = NULL;

    int r = pb_engine_print(e, expression, length, &text);
    if (r < 0)
        return r;
    if (asprintf(&sql, "SELECT epoch_ns(CAST((%s) AS TIMESTAMP))::VARCHAR", text) < 0) {
        sql = NULL;
        return -ENOMEM;
    }
    r = pb_engine_ask(e, sql, NULL, 0, &value, NULL);
    if (r < 0 || !value)
        return r < 0 ? r : -EINVAL;
    *ret = strtoll(value, NULL, 10);
    return 0;
}

static void touch_table(void *arg, const char *schema, const char *table, struct pb_time_range range)
{
    struct pb_engine *e = arg;
    struct pb_cat_table *t = pb_catalog_find(&e->request->catalog, schema, table);

    if (!t)
        return;
    if (!t->touched) {
        t->range = range;
    } else {
        t->range.from = range.from < t->range.from ? range.from : t->range.from;
        t->range.to = range.to > t->range.to ? range.to : t->range.to;
    }
    t->touched = true;
}

/* Marks the columns that the statement may read, and of live tables those that it names: it may read them
 * through a view. */
static void want_columns(struct pb_engine *e, const struct pb_json *tree)
{
    struct pb_catalog *c = &e->request->catalog;

    for (unsigned i = 0; i < c->ntables; i++) {
        struct pb_cat_table *t = c->tables[i];
        for (unsigned k = 0; t->live && k < t->ncolumns; k++)
            t->columns[k].named = t->columns[k].named || pb_bounds_mentions(tree, t->columns[k].name);
        if (!t->touched)
            continue;
        /* The scan notices columns missed here (a name that JSON escapes, a column by number). */
        for (unsigned k = 0; k < t->ncolumns; k++)
            t->columns[k].wanted = t->columns[k].wanted || pb_bounds_names(tree, t->columns[k].name);
        /* A table's name in the place of a column means a whole row: it then occurs more than once. */
        t->whole = t->whole || pb_bounds_mentions(tree, t->name) > 1;
    }
}

static unsigned count_text(const char *text, const char *word)
{
    unsigned n = 0;

    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

/* One statement without a usable tree makes the order of all matter, and all columns wanted. */
static int read_tree(struct pb_engine *e, const char *sql)
{
    _cleanup_free_ char *tree = NULL;
    struct pb_bounds_ops ops = {
        .time_column = time_column, .evaluate = evaluate_constant, .touch = touch_table, .arg = e};
    struct pb_json j;

    int r = pb_engine_tree(e, sql, &tree);
    if (r == 0)
        r = pb_json_parse(tree, strlen(tree), &j);
    if (r < 0)
        return r;
    r = pb_bounds_find(&j, &ops);
    if (r == 0)
        want_columns(e, &j);
    if (r == 0)
        pb_need_names(e, &j);
    e->single = e->single && count_text(tree, "BASE_TABLE") <= 1;
    if (r == 0 && !pb_bounds_any_order(&j))
        e->ordered = true;
    pb_json_done(&j);
    return r;
}

/* EXPLAIN has no tree, but what it explains has one. */
static void name_explained(struct pb_engine *e, const char *sql)
{
    const char *inner = pb_statement_explained(sql);
    _cleanup_free_ char *tree = NULL;
    struct pb_json j;

    bool has_tree =
        inner && pb_engine_tree(e, inner, &tree) == 0 && pb_json_parse(tree, strlen(tree), &j) == 0;
    pb_need_names(e, has_tree ? &j : NULL);
    if (has_tree)
        pb_json_done(&j);
}

void pb_prepare_statement(struct pb_engine *e, const char *sql)
{
    if (!strcasestr(sql, "from") && !pb_need_names_matter(e)) {
        /* TABLE t and PIVOT t also name a table. */
        e->ordered = true;
        pb_need_names(e, NULL);
        return;
    }
    /* Statements without a tree (EXPLAIN, PIVOT, errors) read their tables whole and as strings. */
    if (strlen(sql) > MAX_TREE_SQL || read_tree(e, sql) < 0) {
        e->ordered = e->opaque = true;
        name_explained(e, sql);
    }
}

static void note_range(struct pb_engine *e, const struct pb_cat_table *t)
{
    char text[32];
    time_t s = (time_t)(t->oldest / 1000000000);
    struct tm tm;

    if (t->range.from == INT64_MIN || t->oldest == INT64_MAX || t->range.from >= t->oldest)
        return;
    strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", gmtime_r(&s, &tm));
    pb_engine_note(e, "%s holds rows from %s UTC on; the requested time begins earlier", t->name, text);
}

int pb_prepare_table(void *engine, struct pb_cat_table *t, struct pb_err *err)
{
    struct pb_engine *e = engine;

    t->whole = t->whole || !t->touched || e->opaque || t->narchived;
    int r = t->live && !t->taken && !t->nparts ? pb_need_live(e, t, err) : 0;
    /* A table that may be read more than once is copied, so that its reads agree. So is one with archived
     * rows: every new snapshot would need another request for files. */
    if (!t->touched || e->opaque || e->several || t->narchived)
        t->copies = PB_COPY_ALL;
    return r == 0 ? pb_catalog_take(t, err) : r;
}

static int make_enums(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err)
{
    int r = pb_catalog_make_enums(t, err);
    if (r < 0)
        return err->text[0] ? r : pb_fail(err, r, "out of memory");
    return pb_views_use_enums(e, t, err);
}

int pb_prepare_again(struct pb_engine *e, enum pb_cat_copies copies, struct pb_err *err)
{
    struct pb_catalog *c = &e->request->catalog;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < c->ntables; i++) {
        struct pb_cat_table *t = c->tables[i];
        if (!t->taken || t->narchived)
            continue;
        /* Late cells may have been filled in between two scans. */
        if (t->copies != PB_COPY_ALL)
            t->copies = t->scans > 1 ? PB_COPY_ALL : copies;
        pb_catalog_drop(t);
        r = pb_catalog_take(t, err);
        if (r == 0)
            r = make_enums(e, t, err);
    }
    return r;
}

/* Whether no later scan of the statement can force it to run again: no segment is still to be read from
 * memory that its writer recycles, and every column that might be asked for is there. A statement with one
 * scan has asked for its columns by its first rows. */
static bool is_settled(const struct pb_engine *e, const struct pb_cat_table *t)
{
    return !t->taken || (t->ndeferred == 0 && (t->whole || e->single));
}

bool pb_prepare_is_settled(const struct pb_engine *e)
{
    const struct pb_catalog *c = &e->request->catalog;

    for (unsigned i = 0; i < c->ntables; i++)
        if (!is_settled(e, c->tables[i]))
            return false;
    return true;
}

int pb_prepare_settled(struct pb_engine *e, struct pb_err *err)
{
    struct pb_catalog *c = &e->request->catalog;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < c->ntables; i++) {
        struct pb_cat_table *t = c->tables[i];
        enum pb_cat_copies before = t->copies;
        if (is_settled(e, t))
            continue;
        t->whole = t->whole || !e->single;
        t->copies = PB_COPY_ALL;
        pb_catalog_drop(t);
        r = pb_catalog_take(t, err);
        if (r == -E2BIG)
            t->copies = before;
        if (r == 0)
            r = make_enums(e, t, err);
    }
    return r;
}

int pb_prepare_tables(struct pb_engine *e, struct pb_err *err)
{
    struct pb_catalog *c = &e->request->catalog;
    int r = 0;

    for (unsigned i = 0; r == 0 && i < c->ntables; i++) {
        struct pb_cat_table *t = c->tables[i];
        if (!t->touched && !t->named)
            continue;
        r = pb_archive_look(e, t, err);
        if (r == 0)
            r = pb_prepare_table(e, t, err);
        if (r == 0)
            r = pb_archive_take(e, t, err);
        if (r == 0)
            note_range(e, t);
        if (r == 0 && pb_archive_has_files(t)) {
            r = pb_views_use_archive(e, t, err);
            continue;
        }
        if (r == 0)
            r = make_enums(e, t, err);
    }
    return r;
}

/* --- why a table is empty --- */

static bool has_rows(const struct pb_cat_table *t)
{
    return t->nrows || t->segments_skipped || t->narchived;
}

/* Whether one of the tables that the view of t reads has rows, or (parts) exists in a process: the tables
 * that were read but that no statement names. */
static bool sources_have(const struct pb_engine *e, bool parts)
{
    const struct pb_catalog *c = &e->request->catalog;

    for (unsigned i = 0; i < c->ntables; i++) {
        const struct pb_cat_table *t = c->tables[i];
        if (t->taken && !t->touched && (parts ? !t->live && t->nparts : has_rows(t)))
            return true;
    }
    return false;
}

/* Whether a table that a statement names shows no row, and should: not one of this moment. */
static bool is_empty(const struct pb_engine *e, const struct pb_cat_table *t)
{
    return t->touched && t->taken && (!t->live || t->asked) && !has_rows(t) &&
           !(pb_derived_is(t) && sources_have(e, false));
}

static bool note_empty(struct pb_engine *e, const struct pb_cat_table *t)
{
    const char *by = pb_known_filled_by(t->schema, t->name);
    bool in_main = strcmp(t->schema, "main") == 0;
    const char *schema = in_main ? "" : t->schema, *dot = in_main ? "" : ".";

    if (by && !t->nparts && !(pb_derived_is(t) && sources_have(e, true)))
        pb_engine_note(e, "%s%s%s is empty: it was not recorded (%s)", schema, dot, t->name, by);
    else if (by)
        pb_engine_note(e, "%s%s%s is empty: there was nothing to record yet", schema, dot, t->name);
    else if (e->request->no_agent)
        pb_engine_note(e, "%s%s%s is empty: the process is not probed yet (probing -t PID inject)", schema,
                       dot, t->name);
    else
        return false;
    return true;
}

void pb_prepare_note_empty(struct pb_engine *e)
{
    const struct pb_catalog *c = &e->request->catalog;
    bool shown = false;

    if (c->nsources == 0 || c->sources[0].pid == 0 || e->opaque)
        return;
    /* Of several statements some may well show nothing: that is worth a word only where all do. */
    for (unsigned i = 0; i < c->ntables; i++)
        shown = shown || (c->tables[i]->touched && !is_empty(e, c->tables[i]));
    for (unsigned i = 0; !(e->several && shown) && i < c->ntables; i++)
        if (is_empty(e, c->tables[i]) && note_empty(e, c->tables[i]))
            return; /* one note says enough */
}
