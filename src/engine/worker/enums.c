/* enums: makes an ENUM per column from the strings in a snapshot. A column with very many different strings,
 * or one that no ENUM can hold, stays VARCHAR. */
#include "engine/worker/enum_members.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* With fewer rows an ENUM, which needs a view, costs more than it saves. */
enum { LEAST_ROWS = 20000 };

/* Most segments that are copied to find out whether a column's strings fit an ENUM. */
enum { MAX_COPIED = 1024 };

/* Adds the strings that the column uses in one segment, and stores their places. */
static int collect_strings(struct pb_cat_segment *s, const struct pb_view_column *column, unsigned index,
                           unsigned ncolumns, struct pb_enum_members *m)
{
    const struct pb_view *v = &s->view;
    const uint16_t *cells = column->cells;

    if (!s->ids && !(s->ids = calloc(ncolumns, sizeof(*s->ids))))
        return -ENOMEM;
    uint16_t *ids = s->ids[index] = malloc((v->nstrings + 1) * sizeof(*ids));
    if (!ids)
        return -ENOMEM;
    memset(ids, 0xff, (v->nstrings + 1) * sizeof(*ids));
    for (uint32_t i = 0; cells && i < v->nrows; i++) {
        uint16_t id = cells[i];
        uint32_t place;
        if (id >= v->nstrings || ids[id] != PB_NO_PLACE || !(column->validity[i / 64] >> i % 64 & 1))
            continue;
        int r = pb_enum_members_place(m, &v->strings[id], &place);
        if (r < 0)
            return r;
        ids[id] = (uint16_t)place;
    }
    return 0;
}

static void drop_ids(struct pb_cat_table *t, unsigned column)
{
    for (unsigned i = 0; i < t->nsegments; i++)
        if (t->segments[i].ids) {
            free(t->segments[i].ids[column]);
            t->segments[i].ids[column] = NULL;
        }
}

static int make_enum(struct pb_cat_table *t, unsigned column, struct pb_enum_members *m)
{
    uint32_t *to = NULL;
    int r = 0;

    pb_enum_members_clear(m);
    for (unsigned i = 0; r == 0 && i < t->nsegments; i++) {
        int theirs = t->parts[t->segments[i].part].columns[column];
        if (theirs >= 0)
            r = collect_strings(&t->segments[i], &t->segments[i].view.columns[theirs], column, t->ncolumns,
                                m);
    }
    if (r == 0 && m->n == 0)
        r = -E2BIG;
    if (r == 0) {
        to = malloc(m->n * sizeof(*to));
        r = to ? pb_enum_members_make_type(m, &t->columns[column].strings, to) : -ENOMEM;
    }
    for (unsigned i = 0; r == 0 && i < t->nsegments; i++) {
        uint16_t *ids = t->segments[i].ids ? t->segments[i].ids[column] : NULL;
        for (uint32_t k = 0; ids && k <= t->segments[i].view.nstrings; k++)
            ids[k] = ids[k] == PB_NO_PLACE ? 0 : (uint16_t)to[ids[k]];
    }
    free(to);
    if (r < 0)
        drop_ids(t, column);
    return r == -E2BIG ? 0 : r;
}

static int make_each(struct pb_cat_table *t)
{
    struct pb_enum_members m = {0};

    int r = 0;
    for (unsigned i = 0; r == 0 && i < t->ncolumns; i++)
        if (t->columns[i].type == PB_STRING && t->columns[i].wanted)
            r = make_enum(t, i, &m);
    pb_enum_members_done(&m);
    return r;
}

int pb_catalog_make_enums(struct pb_cat_table *t, struct pb_err *err)
{
    bool any = false;
    int r = 0;

    for (unsigned i = 0; i < t->ncolumns; i++) {
        t->columns[i].wanted = t->columns[i].wanted || t->whole;
        any = any || (t->columns[i].type == PB_STRING && t->columns[i].wanted);
    }
    if (!any || t->nrows < LEAST_ROWS)
        return 0;
    if (t->ndeferred) {
        r = pb_catalog_make_shared_enum(t);
        if (r != -E2BIG || t->ndeferred > MAX_COPIED)
            return r == -E2BIG ? 0 : r;
        pb_catalog_drop(t);
        t->copies = PB_COPY_ALL;
        r = pb_catalog_take(t, err);
    }
    return r == 0 ? make_each(t) : r;
}
