/* views: a view for every table of the catalog, kept between requests and recreated only when its columns
 * change: a new table of a process is visible to the next query, at no cost for the others. */
#include "base/hash.h"
#include "engine/worker/engine_impl.h"

#include "base/cleanup.h"
#include "engine/shared/sql_text.h"
#include "engine/worker/archive_scan.h"
#include "engine/worker/derived.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static uint64_t signature_of(const struct pb_catalog *c, const struct pb_cat_table *t)
{
    uint64_t h = pb_hash_bytes(PB_HASH_START, &c->ranks, 1);

    for (unsigned i = 0; i < t->ncolumns; i++) {
        h = pb_hash_bytes(h, t->columns[i].name, strlen(t->columns[i].name) + 1);
        h = pb_hash_bytes(h, &t->columns[i].type, sizeof(t->columns[i].type));
    }
    return h ? h : 1;
}

static struct pb_engine_view *find_view(struct pb_engine *e, const char *schema, const char *name)
{
    for (unsigned i = 0; i < e->nviews; i++)
        if (strcasecmp(e->views[i].name, name) == 0 && strcasecmp(e->views[i].schema, schema) == 0)
            return &e->views[i];
    return NULL;
}

static int make_view(struct pb_engine *e, const struct pb_cat_table *t, struct pb_err *err)
{
    char sql[8 * PB_CAT_NAME];

    if (strcmp(t->schema, "main") != 0) {
        snprintf(sql, sizeof(sql), "CREATE SCHEMA IF NOT EXISTS memory.\"%s\"", t->schema);
        int r = pb_engine_do(e, sql, err);
        if (r < 0)
            return r;
    }
    _cleanup_free_ char *archived = NULL, *rows = NULL, *derived = NULL, *text = NULL;
    int r = pb_archive_select(e, t, &archived);
    /* Table names have only letters, digits and underscores: see catalog.c. */
    if (r < 0 ||
        asprintf(&rows, "%sSELECT * FROM pb_scan('%s.%s')", archived ? archived : "", t->schema, t->name) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (pb_derived_is(t) && !(derived = pb_derived_select(t, rows, e->request->catalog.ranks)))
        return pb_fail(err, -ENOMEM, "out of memory");
    if (asprintf(&text, "CREATE OR REPLACE VIEW memory.\"%s\".\"%s\" AS %s", t->schema, t->name,
                 derived ? derived : rows) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    return pb_engine_do(e, text, err);
}

static int add_view(struct pb_engine *e, const struct pb_cat_table *t, struct pb_engine_view **ret)
{
    struct pb_engine_view *more = realloc(e->views, (e->nviews + 1) * sizeof(*more));

    if (!more)
        return -ENOMEM;
    e->views = more;
    *ret = &e->views[e->nviews++];
    **ret = (struct pb_engine_view){0};
    memcpy((*ret)->schema, t->schema, sizeof(t->schema));
    memcpy((*ret)->name, t->name, sizeof(t->name));
    return 0;
}

static int drop_gone(struct pb_engine *e, struct pb_err *err)
{
    int r = 0;

    for (unsigned i = 0; r == 0 && i < e->nviews;) {
        struct pb_engine_view *v = &e->views[i];
        if (pb_catalog_find(&e->request->catalog, v->schema, v->name)) {
            i++;
            continue;
        }
        char sql[4 * PB_CAT_NAME];
        snprintf(sql, sizeof(sql), "DROP VIEW IF EXISTS memory.\"%s\".\"%s\"", v->schema, v->name);
        r = pb_engine_do(e, sql, err);
        *v = e->views[--e->nviews];
    }
    return r;
}

int pb_views_sync(struct pb_engine *e, struct pb_err *err)
{
    struct pb_catalog *c = &e->request->catalog;

    int r = drop_gone(e, err);
    for (unsigned i = 0; r == 0 && i < c->ntables; i++) {
        struct pb_cat_table *t = c->tables[i];
        struct pb_engine_view *v = find_view(e, t->schema, t->name);
        uint64_t signature = signature_of(c, t);
        if (v && v->signature == signature)
            continue;
        if (!v)
            r = add_view(e, t, &v);
        if (r == 0)
            r = make_view(e, t, err);
        if (r == 0)
            v->signature = signature;
    }
    return r;
}

bool pb_views_forget(struct pb_engine *e, const char *schema, const char *name)
{
    struct pb_engine_view *v = find_view(e, schema, name);

    if (v)
        v->signature = 0;
    return v;
}

/* For this request only: the next one recreates the view. */
int pb_views_use_archive(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err)
{
    struct pb_engine_view *v = find_view(e, t->schema, t->name);

    if (!v)
        return 0;
    v->signature = 0;
    return make_view(e, t, err);
}

int pb_views_use_enums(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err)
{
    struct pb_engine_view *v = find_view(e, t->schema, t->name);
    bool any = false;

    for (unsigned i = 0; i < t->ncolumns; i++)
        any = any || t->columns[i].strings.type;
    if (!any || !v)
        return 0;
    /* The ENUM belongs to this snapshot: the next request recreates the view. */
    v->signature = 0;
    return make_view(e, t, err);
}

int pb_views_comment(struct pb_engine *e, struct pb_err *err)
{
    struct pb_catalog *c = &e->request->catalog;
    char *sql = NULL;
    size_t size;
    FILE *out = open_memstream(&sql, &size);

    if (!out)
        return -ENOMEM;
    for (unsigned i = 0; i < c->ntables; i++) {
        const struct pb_cat_table *t = c->tables[i];
        fprintf(out, "COMMENT ON VIEW memory.\"%s\".\"%s\" IS ", t->schema, t->name);
        pb_put_quoted(out, t->comment, '\'');
        for (unsigned k = 0; k < t->ncolumns; k++) {
            char text[128];
            const struct pb_cat_column *column = &t->columns[k];
            if (!pb_utf8_valid(column->comment, strlen(column->comment)) ||
                !pb_utf8_valid(column->unit, strlen(column->unit)))
                continue;
            snprintf(text, sizeof(text), column->unit[0] ? "%s (%s)" : "%s", column->comment, column->unit);
            fprintf(out, "; COMMENT ON COLUMN memory.\"%s\".\"%s\".", t->schema, t->name);
            pb_put_quoted(out, column->name, '"');
            fputs(" IS ", out);
            pb_put_quoted(out, text, '\'');
        }
        fputs(";\n", out);
    }
    int r = fclose(out) == 0 ? pb_engine_do(e, sql, err) : -ENOMEM;
    free(sql);
    return r;
}
