/* enums: the strings of a snapshot as one ENUM a column.
 *
 * DuckDB groups and compares ENUMs as small integers, four times faster than strings. The members are sorted
 * by their bytes, so that they order as the strings do. A column with very many different strings, or with
 * one that no ENUM can hold (it contains a NUL byte or is no UTF-8), stays VARCHAR. */
#include "engine/catalog.h"
#include "engine/duck.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MEMBERS = 65535, HASH_SIZE = 1 << 18 };

struct member {
    const char *data;
    uint32_t length, order;
};

struct members {
    struct member *at;
    uint32_t n;
    uint32_t *hash; /* place + 1; 0: free */
};

static uint32_t hash_of(const char *data, uint32_t length)
{
    uint64_t h = 1469598103934665603ull;
    for (uint32_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)data[i]) * 1099511628211ull;
    return (uint32_t)(h ^ h >> 32);
}

/* The place of a string, which is added where it is new; UINT32_MAX: it cannot be. */
static uint32_t place_of(struct members *m, const struct pb_text *text)
{
    if (!text->utf8 || memchr(text->data, 0, text->length))
        return UINT32_MAX;
    for (uint32_t slot = hash_of(text->data, text->length);; slot++) {
        uint32_t *place = &m->hash[slot % HASH_SIZE];
        if (*place == 0) {
            if (m->n == MAX_MEMBERS)
                return UINT32_MAX;
            m->at[m->n] = (struct member){.data = text->data, .length = text->length, .order = m->n};
            *place = ++m->n;
            return m->n - 1;
        }
        const struct member *have = &m->at[*place - 1];
        if (have->length == text->length && memcmp(have->data, text->data, text->length) == 0)
            return *place - 1;
    }
}

/* The members' places for the strings that the column uses in one segment. */
static int collect(struct pb_cat_segment *s, const struct pb_view_column *column, unsigned index,
                   unsigned ncolumns, struct members *m)
{
    const struct pb_view *v = &s->view;
    const uint16_t *cells = column->cells;

    if (!s->ids && !(s->ids = calloc(ncolumns, sizeof(*s->ids))))
        return -ENOMEM;
    uint32_t *ids = s->ids[index] = malloc((v->nstrings + 1) * sizeof(*ids));
    if (!ids)
        return -ENOMEM;
    memset(ids, 0xff, (v->nstrings + 1) * sizeof(*ids));
    for (uint32_t i = 0; cells && i < v->nrows; i++) {
        uint16_t id = cells[i];
        if (id >= v->nstrings || ids[id] != UINT32_MAX || !(column->validity[i / 64] >> i % 64 & 1))
            continue;
        ids[id] = place_of(m, &v->strings[id]);
        if (ids[id] == UINT32_MAX)
            return -E2BIG;
    }
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int r = memcmp(x->data, y->data, x->length < y->length ? x->length : y->length);
    return r ? r : (x->length > y->length) - (x->length < y->length);
}

/* Sorts the members and makes the type; *ret_to: from a place to its index in it. */
static int make_type(struct members *m, struct pb_cat_enum *ret, uint32_t *to)
{
    char **names = calloc(m->n, sizeof(*names));
    int r = names ? 0 : -ENOMEM;

    qsort(m->at, m->n, sizeof(*m->at), by_bytes);
    for (uint32_t i = 0; r == 0 && i < m->n; i++) {
        to[m->at[i].order] = i;
        names[i] = strndup(m->at[i].data, m->at[i].length);
        r = names[i] ? 0 : -ENOMEM;
    }
    if (r == 0) {
        ret->type = duck.create_enum_type((const char **)names, m->n);
        duckdb_type width = ret->type ? duck.enum_internal_type(ret->type) : DUCKDB_TYPE_INVALID;
        ret->width = width == DUCKDB_TYPE_UTINYINT ? 1 : width == DUCKDB_TYPE_USMALLINT ? 2 : 4;
        r = ret->type ? 0 : -EINVAL;
    }
    for (uint32_t i = 0; names && i < m->n; i++)
        free(names[i]);
    free(names);
    return r;
}

static void forget(struct pb_cat_table *t, unsigned column)
{
    for (unsigned i = 0; i < t->nsegments; i++)
        if (t->segments[i].ids) {
            free(t->segments[i].ids[column]);
            t->segments[i].ids[column] = NULL;
        }
}

static int make_enum(struct pb_cat_table *t, unsigned column, struct members *m)
{
    uint32_t *to = NULL;
    int r = 0;

    m->n = 0;
    memset(m->hash, 0, HASH_SIZE * sizeof(*m->hash));
    for (unsigned i = 0; r == 0 && i < t->nsegments; i++) {
        int theirs = t->parts[t->segments[i].part].columns[column];
        if (theirs >= 0)
            r = collect(&t->segments[i], &t->segments[i].view.columns[theirs], column, t->ncolumns, m);
    }
    if (r == 0 && m->n == 0)
        r = -E2BIG;
    if (r == 0) {
        to = malloc(m->n * sizeof(*to));
        r = to ? make_type(m, &t->columns[column].strings, to) : -ENOMEM;
    }
    for (unsigned i = 0; r == 0 && i < t->nsegments; i++) {
        uint32_t *ids = t->segments[i].ids ? t->segments[i].ids[column] : NULL;
        for (uint32_t k = 0; ids && k < t->segments[i].view.nstrings; k++)
            ids[k] = ids[k] == UINT32_MAX ? 0 : to[ids[k]];
    }
    free(to);
    if (r < 0)
        forget(t, column);
    return r == -E2BIG ? 0 : r;
}

int pb_catalog_make_enums(struct pb_cat_table *t)
{
    struct members m = {0};
    int r = 0;

    for (unsigned i = 0; r == 0 && i < t->ncolumns; i++) {
        if (t->columns[i].type != PB_STRING || t->columns[i].strings.type)
            continue;
        if (!m.at) {
            m.at = malloc(MAX_MEMBERS * sizeof(*m.at));
            m.hash = malloc(HASH_SIZE * sizeof(*m.hash));
            if (!m.at || !m.hash)
                r = -ENOMEM;
        }
        if (r == 0)
            r = make_enum(t, i, &m);
    }
    free(m.at);
    free(m.hash);
    return r;
}
