/* catalog: see catalog.h. Snapshots are taken in snapshot.c, ENUMs made in enums.c. */
#include "engine/worker/catalog.h"

#include "base/err.h"
#include "engine/shared/archive.h"
#include "engine/shared/known.h"
#include "engine/shared/type_name.h"
#include "engine/shared/widen.h"
#include "engine/worker/archive_scan.h"
#include "engine/worker/duck.h"
#include "engine/worker/pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_TABLES = 512 };

struct pb_cat_table *pb_catalog_find(const struct pb_catalog *c, const char *schema, const char *name)
{
    if (!schema[0])
        schema = "main";
    for (unsigned i = 0; i < c->ntables; i++)
        if (strcasecmp(c->tables[i]->name, name) == 0 && strcasecmp(c->tables[i]->schema, schema) == 0)
            return c->tables[i];
    return NULL;
}

/* Splits "schema.name"; false where the name is not allowed. */
static bool split_name(const char *full, char schema[PB_CAT_NAME], char name[PB_CAT_NAME])
{
    const char *dot = strchr(full, '.');
    const char *rest = dot ? dot + 1 : full;

    if (!pb_name_is_table(full))
        return false;
    snprintf(schema, PB_CAT_NAME, "%.*s", dot ? (int)(dot - full) : 4, dot ? full : "main");
    snprintf(name, PB_CAT_NAME, "%s", rest);
    return true;
}

_Static_assert(PB_CAT_NAME == PB_ARCHIVE_TABLE, "one rule of names");

static struct pb_cat_table *new_table(struct pb_catalog *c, const char *full, const char *comment)
{
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];

    if (c->ntables == MAX_TABLES || !split_name(full, schema, name))
        return NULL;
    struct pb_cat_table *t = calloc(1, sizeof(*t));
    struct pb_cat_table **more = realloc(c->tables, (c->ntables + 1) * sizeof(void *));
    if (more)
        c->tables = more;
    if (!t || !more) {
        free(t);
        return NULL;
    }
    memcpy(t->schema, schema, sizeof(schema));
    memcpy(t->name, name, sizeof(name));
    snprintf(t->comment, sizeof(t->comment), "%s", comment ? comment : "");
    t->range = PB_RANGE_ALL;
    t->time_column = -1;
    t->oldest = INT64_MAX;
    c->tables[c->ntables++] = t;
    return t;
}

static int find_column(const struct pb_cat_table *t, const char *name)
{
    for (unsigned i = 0; i < t->ncolumns; i++)
        if (strcasecmp(t->columns[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* The column of that name, added if new; -1 where it cannot be (too many, or the name is no text). */
static int add_column(struct pb_cat_table *t, const char *name, enum pb_type type, const char *unit,
                      const char *comment)
{
    int found = find_column(t, name);

    if (found >= 0)
        return found;
    if (t->ncolumns == PB_MAX_COLUMNS || !name[0] || !pb_utf8_valid(name, strlen(name)))
        return -1;
    struct pb_cat_column *column = &t->columns[t->ncolumns];
    *column = (struct pb_cat_column){.type = type};
    snprintf(column->name, sizeof(column->name), "%s", name);
    snprintf(column->unit, sizeof(column->unit), "%s", unit ? unit : "");
    snprintf(column->comment, sizeof(column->comment), "%s", comment ? comment : "");
    return (int)t->ncolumns++;
}

struct pb_cat_table *pb_catalog_find_full(const struct pb_catalog *c, const char *full)
{
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];

    return split_name(full, schema, name) ? pb_catalog_find(c, schema, name) : NULL;
}

struct pb_cat_table *pb_catalog_table(struct pb_catalog *c, const char *full)
{
    struct pb_cat_table *t = pb_catalog_find_full(c, full);
    return t ? t : new_table(c, full, "");
}

int pb_catalog_column(struct pb_cat_table *t, const char *name, enum pb_type type, const char *unit,
                      const char *comment)
{
    return add_column(t, name, type, unit, comment);
}

static int add_known(struct pb_catalog *c)
{
    for (unsigned i = 0; i < pb_nknown; i++) {
        const struct pb_table_spec *spec = &pb_known[i].spec;
        struct pb_cat_table *t = new_table(c, spec->name, spec->comment);
        if (!t)
            return -ENOMEM;
        t->live = pb_known[i].live;
        t->asked = pb_known[i].asked;
        for (unsigned k = 0; k < spec->ncolumns; k++) {
            const struct pb_column *column = &spec->columns[k];
            if (t->time_column < 0 && column->type == PB_TIMESTAMP && !t->live)
                t->time_column = (int)k;
            add_column(t, column->name, column->type, column->unit, column->comment);
        }
    }
    return 0;
}

bool pb_catalog_agree(struct pb_cat_column *c, enum pb_type type, unsigned source)
{
    if (!c->given) {
        c->type = type;
        c->given = true;
        c->giver = source;
        return true;
    }
    enum pb_type both = pb_widen_type(c->type, type);
    if (both) {
        c->type = both;
        return true;
    }
    if (!c->conflict) {
        c->conflict = true;
        c->other = source;
        c->other_type = type;
    }
    return false;
}

void pb_catalog_time(struct pb_cat_table *t, const char *name, bool first)
{
    int column = name ? find_column(t, name) : -1;

    t->time_column = first || column == t->time_column ? column : -1;
}

static void name_source(const struct pb_cat_source *s, char *ret, size_t size)
{
    if (s->rank >= 0)
        snprintf(ret, size, "rank %d (process %d)", (int)s->rank, (int)s->pid);
    else
        snprintf(ret, size, "process %d", (int)s->pid);
}

void pb_catalog_conflict(const struct pb_catalog *c, const struct pb_cat_table *t,
                         const struct pb_cat_column *column, struct pb_err *err)
{
    char first[64], other[64];

    name_source(&c->sources[column->giver], first, sizeof(first));
    name_source(&c->sources[column->other], other, sizeof(other));
    pb_fail(
        err, -EINVAL,
        "the column %s of %s has no one type: it is %s in %s and %s in %s (leave the column out, or ask the "
        "processes one by one: -t PID)",
        column->name, t->name, pb_stored_type_name(column->type), first,
        pb_stored_type_name(column->other_type), other);
}

/* Adds a source's table as a part. */
static int add_part(struct pb_cat_table *t, struct pb_reader *reader, unsigned index, unsigned source,
                    const struct pb_table_info *info)
{
    struct pb_cat_part *more = realloc(t->parts, (t->nparts + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    t->parts = more;
    struct pb_cat_part *part = &t->parts[t->nparts++];
    *part = (struct pb_cat_part){.reader = reader, .table = index, .source = source, .fd = -1};
    memset(part->columns, 0xff, sizeof(part->columns));
    for (unsigned i = 0; i < info->ncolumns; i++) {
        const struct pb_column_info *theirs = &info->columns[i];
        int ours = add_column(t, theirs->name, theirs->type, theirs->unit, theirs->comment);
        if (ours < 0 || part->columns[ours] >= 0)
            continue;
        t->columns[ours].late = t->columns[ours].late || (theirs->flags & PB_COL_LATE);
        if (!pb_catalog_agree(&t->columns[ours], theirs->type, source))
            continue;
        part->columns[ours] = (int)i;
        part->types[ours] = (uint8_t)theirs->type;
    }
    pb_catalog_time(t, info->time_column >= 0 ? info->columns[info->time_column].name : NULL, t->nparts == 1);
    return 0;
}

static int add_arena(struct pb_catalog *c, unsigned source)
{
    struct pb_reader *reader = c->sources[source].reader;
    struct pb_table_info info;
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];

    for (unsigned i = 0; i < pb_reader_ntables(reader); i++) {
        int r = pb_reader_table(reader, i, &info);
        if (r < 0 || info.ncolumns == 0 || !split_name(info.name, schema, name))
            continue;
        struct pb_cat_table *t = pb_catalog_find(c, schema, name);
        if (!t)
            t = new_table(c, info.name,
                          pb_utf8_valid(info.comment, strlen(info.comment)) ? info.comment : "");
        /* A process must not record a table under the name of a live table. */
        if (!t || t->live)
            continue;
        r = add_part(t, reader, i, source, &info);
        if (r < 0)
            return r;
        t->parts[t->nparts - 1].fd = c->sources[source].fd;
    }
    return 0;
}

int pb_catalog_init(struct pb_catalog *c, struct pb_cat_source *sources, unsigned nsources,
                    struct pb_err *err)
{
    char why[PB_WHY_SIZE];

    *c = (struct pb_catalog){.sources = sources, .nsources = nsources};
    /* Several arenas of one process count as one process. */
    for (unsigned i = 1; i < nsources; i++)
        c->ranks = c->ranks || sources[i].pid != sources[0].pid;
    int r = add_known(c);
    for (unsigned i = 0; r == 0 && i < nsources; i++) {
        if (sources[i].fd < 0)
            continue;
        r = pb_reader_open(sources[i].fd, &sources[i].reader, why);
        if (r < 0)
            return pb_fail(err, r, "the tables of process %d cannot be read: %s", (int)sources[i].pid, why);
        r = add_arena(c, i);
    }
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}

static void release_segment(struct pb_cat_segment *s, unsigned ncolumns)
{
    for (unsigned i = 0; s->ids && i < ncolumns; i++)
        free(s->ids[i]);
    free(s->ids);
    free(s->places);
    pb_pool_give(&s->view);
}

bool pb_catalog_fits(const struct pb_cat_table *t, unsigned part, const struct pb_view *v)
{
    for (unsigned i = 0; i < t->ncolumns; i++) {
        int theirs = t->parts[part].columns[i];
        if (theirs >= 0 &&
            ((unsigned)theirs >= v->ncolumns || v->columns[theirs].type != t->parts[part].types[i]))
            return false;
    }
    return true;
}

void pb_catalog_drop(struct pb_cat_table *t)
{
    for (unsigned i = 0; i < t->nsegments; i++)
        release_segment(&t->segments[i], t->ncolumns);
    for (unsigned i = 0; i < t->ncolumns; i++) {
        if (t->columns[i].strings.type && !t->shared.type)
            duck.destroy_logical_type(&t->columns[i].strings.type);
        t->columns[i].strings = (struct pb_cat_enum){0};
    }
    if (t->shared.type)
        duck.destroy_logical_type(&t->shared.type);
    free(t->segments);
    t->segments = NULL;
    t->nsegments = t->ndeferred = t->scans = 0;
    t->nrows = t->segments_read = t->segments_skipped = t->bytes = 0;
    t->damaged = 0;
    t->taken = false;
}

static void release_table(struct pb_cat_table *t)
{
    pb_catalog_drop(t);
    /* Readers of a live table are its own; the others belong to the sources. */
    for (unsigned i = 0; t->live && i < t->nparts; i++) {
        pb_reader_close(t->parts[i].reader);
        close(t->parts[i].fd);
    }
    pb_archive_release(t);
    free(t->parts);
    free(t);
}

void pb_catalog_done(struct pb_catalog *c)
{
    for (unsigned i = 0; i < c->ntables; i++)
        release_table(c->tables[i]);
    for (unsigned i = 0; i < c->nsources; i++) {
        pb_reader_close(c->sources[i].reader);
        if (c->sources[i].fd >= 0)
            close(c->sources[i].fd);
    }
    free(c->tables);
    free(c->sources);
    *c = (struct pb_catalog){0};
}

int pb_catalog_only_table(int fd, char ret[2 * PB_CAT_NAME], struct pb_err *err)
{
    struct pb_reader *reader;
    struct pb_table_info info;
    char why[PB_WHY_SIZE];

    int r = pb_reader_open(fd, &reader, why);
    if (r < 0)
        return pb_fail(err, r, "a table of the process cannot be read: %s", why);
    unsigned n = pb_reader_ntables(reader);
    r = n ? pb_reader_table(reader, 0, &info) : -ENOENT;
    snprintf(ret, 2 * PB_CAT_NAME, "%s", r < 0 ? "" : info.name);
    pb_reader_close(reader);
    if (r == 0 && n > 1)
        return pb_fail(err, -EINVAL, "%s is not the only table of that name: read it by FROM SCHEMA.NAME",
                       ret);
    return r < 0 ? pb_fail(err, r, "the process gave no table") : 0;
}

/* Names in SQL are not case-sensitive, and a table in main has no schema in an arena. */
static int find_in_arena(struct pb_reader *reader, const struct pb_cat_table *t)
{
    struct pb_table_info info;
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];

    for (unsigned i = 0; i < pb_reader_ntables(reader); i++)
        if (pb_reader_table(reader, i, &info) == 0 && split_name(info.name, schema, name) &&
            strcasecmp(schema, t->schema) == 0 && strcasecmp(name, t->name) == 0)
            return (int)i;
    return -ENOENT;
}

int pb_catalog_add_live(struct pb_catalog *c, struct pb_cat_table *t, const int *fds, unsigned nfds,
                        struct pb_err *err)
{
    char full[2 * PB_CAT_NAME], why[PB_WHY_SIZE];
    struct pb_table_info info;

    snprintf(full, sizeof(full), "%s.%s", t->schema, t->name);
    for (unsigned i = 0; i < nfds && i < c->nsources; i++) {
        struct pb_reader *reader = NULL;
        if (fds[i] < 0)
            continue;
        int fd = dup(fds[i]);
        int r = fd < 0 ? -errno : pb_reader_open(fd, &reader, why);
        if (r < 0) {
            if (fd >= 0)
                close(fd);
            return pb_fail(err, r, "%s cannot be read: %s", full, why);
        }
        int table = find_in_arena(reader, t);
        r = table < 0 ? table : pb_reader_table(reader, (unsigned)table, &info);
        if (r == 0)
            r = add_part(t, reader, (unsigned)table, i, &info);
        if (r < 0) {
            pb_reader_close(reader);
            close(fd);
            return pb_fail(err, r, "%s cannot be read: %s", full, strerror(-r));
        }
        t->parts[t->nparts - 1].fd = fd;
    }
    return 0;
}
