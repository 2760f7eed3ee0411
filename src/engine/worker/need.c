/* need: see need.h. */
#include "engine/worker/need.h"

#include "base/cleanup.h"
#include "engine/worker/derived.h"
#include "engine/worker/engine_impl.h"
#include "table/names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* The broker's answer about one table. */
struct need_answer {
    struct pb_wire in;
    int *fds; /* of each source; -1: it has none */
    uint32_t n, taken;
    const char *why; /* of the last source that failed; not terminated */
    uint32_t why_length;
};

static void release_answer(struct need_answer *a)
{
    for (unsigned i = 0; i < a->in.nfds; i++)
        close(a->in.fds[i]);
    a->in.nfds = 0;
    pb_wire_done(&a->in);
    free(a->fds);
}

/* t: to name the columns that the statements name; NULL: the table is not known yet. */
static int ask_broker(struct pb_engine *e, const char *full, const struct pb_cat_table *t,
                      struct need_answer *ret, struct pb_err *err)
{
    unsigned nsources = e->request->catalog.nsources, named = 0;
    struct pb_wire out = {0};

    *ret = (struct need_answer){.fds = calloc(nsources + 1, sizeof(*ret->fds))};
    if (!ret->fds)
        return pb_fail(err, -ENOMEM, "out of memory");
    /* A separate message: a scan may begin while rows of the same statement are being sent. */
    pb_wire_begin(&out, PB_SQL_NEED);
    pb_wire_put_text(&out, full, strlen(full));
    for (unsigned i = 0; t && i < t->ncolumns; i++)
        named += t->columns[i].named;
    pb_wire_put_u32(&out, named);
    for (unsigned i = 0; t && i < t->ncolumns; i++)
        if (t->columns[i].named)
            pb_wire_put_text(&out, t->columns[i].name, strlen(t->columns[i].name));
    int r = pb_engine_send(e, &out);
    pb_wire_done(&out);
    if (r == 0)
        r = pb_engine_receive(e, &ret->in);
    if (r == 0 && ret->in.type != PB_SQL_LIVE)
        r = -EBADMSG;
    if (r < 0)
        return pb_fail(err, r, "%s could not be requested: %s", full, strerror(-r));
    ret->n = pb_wire_u32(&ret->in);
    for (uint32_t i = 0; i < ret->n && i < nsources; i++)
        ret->fds[i] = pb_wire_u32(&ret->in) && ret->taken < ret->in.nfds ? ret->in.fds[ret->taken++] : -1;
    ret->why = pb_wire_text(&ret->in, &ret->why_length);
    if (!pb_wire_ok(&ret->in) || ret->n > nsources)
        return pb_fail(err, -EBADMSG, "%s could not be read", full);
    return 0;
}

int pb_need_live(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err)
{
    _cleanup_(release_answer) struct need_answer a;
    char full[2 * PB_CAT_NAME];

    snprintf(full, sizeof(full), "%s.%s", t->schema, t->name);
    int r = ask_broker(e, full, t, &a, err);
    if (r == 0 && a.n && a.taken == 0)
        r = pb_fail(err, -EIO, "%s cannot be read: %.*s", full, (int)a.why_length, a.why);
    return r < 0 ? r : pb_catalog_add_live(&e->request->catalog, t, a.fds, a.n, err);
}

/* Whether a table is the one asked for: by its whole name, or after a dot by its last part. */
static bool is_name(const char *asked, const char *full)
{
    const char *dot = strchr(full, '.');
    return asked[0] == '.' ? strcasecmp(asked + 1, dot ? dot + 1 : full) == 0 : strcasecmp(asked, full) == 0;
}

/* Adds the table of that name to the catalog. *ret NULL: there is none. With ".name" the schema is not known:
 * there must be one such table. */
static int add_registered(struct pb_engine *e, const char *name, struct pb_cat_table **ret,
                          struct pb_err *err)
{
    _cleanup_(release_answer) struct need_answer a;
    char full[2 * PB_CAT_NAME];

    *ret = NULL;
    int r = ask_broker(e, name, NULL, &a, err);
    if (r == 0 && a.taken == 0 && a.why_length)
        r = pb_fail(err, -EIO, "%.*s", (int)a.why_length, a.why);
    if (r < 0 || a.taken == 0)
        return r;
    r = pb_catalog_only_table(a.in.fds[0], full, err);
    if (r < 0)
        return r;
    /* A process must not give a table under another name: not one of ours. */
    if (!is_name(name, full) || pb_catalog_find_full(&e->request->catalog, full))
        return pb_fail(err, -EPERM, "the process gave the table %s instead of %s", full, name);
    struct pb_cat_table *t = pb_catalog_table(&e->request->catalog, full);
    if (!t)
        return pb_fail(err, -ENOMEM, "out of memory");
    t->live = t->registered = true;
    r = pb_catalog_add_live(&e->request->catalog, t, a.fds, a.n, err);
    *ret = r < 0 ? NULL : t;
    return r;
}

/* --- the names in a statement --- */

static bool copy_text(const struct pb_json *tree, uint32_t node, char ret[PB_CAT_NAME])
{
    const struct pb_json_node *n = &tree->nodes[node];

    if (!node || n->kind != '"' || n->length >= PB_CAT_NAME)
        return false;
    memcpy(ret, n->at, n->length);
    ret[n->length] = '\0';
    return true;
}

/* Whether a process has recorded that functions of it give tables. */
static bool have_registered(const struct pb_engine *e)
{
    const struct pb_cat_table *t = pb_catalog_find(&e->request->catalog, "probing", "registered");
    return t && t->nparts > 0;
}

bool pb_need_names_matter(const struct pb_engine *e)
{
    const struct pb_catalog *c = &e->request->catalog;

    for (unsigned i = 0; i < c->ntables; i++)
        if (c->tables[i]->narchived)
            return true;
    return have_registered(e);
}

/* Whether the statement itself gives the name a meaning: WITH name AS (...). */
static bool is_cte(const struct pb_json *tree, const char *name)
{
    for (uint32_t i = 1; i < tree->n; i++) {
        uint32_t map = pb_json_get(tree, i, "cte_map"), list = map ? pb_json_get(tree, map, "map") : 0;
        for (uint32_t c = list ? tree->nodes[list].child : 0; c; c = tree->nodes[c].next) {
            const struct pb_json_node *key = &tree->nodes[pb_json_get(tree, c, "key")];
            if (key->length == strlen(name) && strncasecmp(key->at, name, key->length) == 0)
                return true;
        }
    }
    return false;
}

/* With the tables that a derived one is made of, which the statement does not name. Derived tables use
 * others, never in a circle. */
static void name_table(struct pb_engine *e, struct pb_cat_table *t)
{
    const struct pb_catalog *c = &e->request->catalog;

    t->named = t->named || t->narchived;
    for (unsigned i = 0; pb_derived_is(t) && i < c->ntables; i++)
        if (c->tables[i] != t && pb_derived_uses(t, c->tables[i]))
            name_table(e, c->tables[i]);
}

static void note_name(struct pb_engine *e, const struct pb_json *tree, const char *schema, const char *name)
{
    bool in_main = !schema[0] || strcasecmp(schema, "main") == 0;
    char full[2 * PB_CAT_NAME];

    if (strchr(schema, '.') || strchr(name, '.')) /* "a.b" is not a.b */
        return;

    snprintf(full, sizeof(full), "%s%s%s", in_main ? "" : schema, in_main ? "" : ".", name);
    for (unsigned i = 0; i < e->nmissing; i++)
        if (strcasecmp(e->missing[i], full) == 0)
            return;
    struct pb_cat_table *t = pb_catalog_find_full(&e->request->catalog, full);
    if (t)
        name_table(e, t);
    else if (pb_name_is_table(full) && e->nmissing < PB_MOST_MISSING && (schema[0] || !is_cte(tree, name)))
        snprintf(e->missing[e->nmissing++], sizeof(e->missing[0]), "%s", full);
}

/* query('FROM t') and query_table('t') have names in their texts. */
static bool hides_names(const struct pb_json *tree)
{
    for (uint32_t i = 1; i < tree->n; i++) {
        uint32_t function = pb_json_get(tree, i, "function_name");
        if (pb_json_is(tree, function, "query") || pb_json_is(tree, function, "query_table"))
            return true;
    }
    return false;
}

/* Archived rows of every table may be read, and every column of live ones. */
static void name_all(struct pb_engine *e)
{
    const struct pb_catalog *c = &e->request->catalog;

    e->hidden = true;
    for (unsigned i = 0; i < c->ntables; i++) {
        struct pb_cat_table *t = c->tables[i];
        t->named = t->named || t->narchived;
        for (unsigned k = 0; t->live && k < t->ncolumns; k++)
            t->columns[k].named = true;
    }
}

void pb_need_names(struct pb_engine *e, const struct pb_json *tree)
{
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];

    if (!tree || hides_names(tree))
        name_all(e);
    for (uint32_t i = 1; tree && i < tree->n; i++)
        if (pb_json_is(tree, pb_json_get(tree, i, "type"), "BASE_TABLE") &&
            copy_text(tree, pb_json_get(tree, i, "schema_name"), schema) &&
            copy_text(tree, pb_json_get(tree, i, "table_name"), name))
            note_name(e, tree, schema, name);
}

int pb_need_missing(struct pb_engine *e, struct pb_err *err)
{
    unsigned before = e->request->catalog.ntables;
    struct pb_cat_table *t;
    int r = 0;

    for (unsigned i = 0; r == 0 && have_registered(e) && i < e->nmissing; i++)
        r = add_registered(e, e->missing[i], &t, err);
    return r < 0 || e->request->catalog.ntables == before ? r : pb_views_sync(e, err);
}

/* --- a statement whose tree hides names --- */

/* DuckDB has not found this table. */
static void find_table(duckdb_replacement_scan_info info, const char *name, void *engine)
{
    struct pb_engine *e = engine;
    struct pb_cat_table *t = NULL;
    struct pb_err err = {0};
    char any[PB_CAT_NAME + 1], full[2 * PB_CAT_NAME];

    if (!e->request || !e->hidden || !have_registered(e) || !pb_name_is_table(name) || strchr(name, '.'))
        return;
    snprintf(any, sizeof(any), ".%s", name);
    /* DuckDB may look more than once. */
    for (unsigned i = 0; !t && i < e->request->catalog.ntables; i++)
        if (e->request->catalog.tables[i]->registered &&
            strcasecmp(e->request->catalog.tables[i]->name, name) == 0)
            t = e->request->catalog.tables[i];
    if (!t && add_registered(e, any, &t, &err) < 0)
        duck.replacement_scan_set_error(info, err.text);
    if (!t)
        return;
    snprintf(full, sizeof(full), "%s.%s", t->schema, t->name);
    duckdb_value value = duck.create_varchar(full);
    duck.replacement_scan_set_function_name(info, "pb_scan");
    duck.replacement_scan_add_parameter(info, value);
    duck.destroy_value(&value);
}

void pb_need_register(struct pb_engine *e)
{
    duck.add_replacement_scan(e->db, find_table, e, NULL);
}
