/* archive_scan: see archive_scan.h. */
#include "engine/worker/archive_scan.h"

#include "base/cleanup.h"
#include "engine/shared/archive.h"
#include "engine/shared/sql_text.h"
#include "engine/shared/type_name.h"
#include "engine/worker/engine_impl.h"
#include "engine/worker/pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scanned_file {
    char *path; /* below the folder */
    unsigned ncolumns;
};

struct pb_cat_archived {
    unsigned source;
    int map[PB_MAX_COLUMNS]; /* the table's column -> the archive's, -1: none */
    struct scanned_file *files;
    unsigned nfiles;
    struct pb_archive_span *held; /* serials of the segments in the files */
    size_t nheld;
};

/* --- tables --- */

static int add_table(struct pb_catalog *c, unsigned source, const char *full, const char *columns,
                     size_t length)
{
    struct pb_cat_table *t = pb_catalog_table(c, full);
    struct pb_archive_columns found;

    if (!t || t->live)
        return 0;
    struct pb_cat_archived *more = realloc(t->archived, (t->narchived + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    t->archived = more;
    struct pb_cat_archived *a = &more[t->narchived++];
    memset(a, 0, sizeof(*a));
    a->source = source;
    memset(a->map, 0xff, sizeof(a->map));
    pb_archive_columns_read(columns, length, &found);
    bool first = t->nparts == 0 && t->narchived == 1;
    const char *time = NULL;
    for (unsigned i = 0; i < found.n; i++) {
        const struct pb_archive_column *from = &found.at[i];
        int ours =
            from->stored ? pb_catalog_column(t, from->name, from->type, from->unit, from->comment) : -1;
        if (ours < 0)
            continue;
        if (pb_catalog_agree(&t->columns[ours], from->type, source))
            a->map[ours] = (int)i;
        if ((int)i == found.time)
            time = from->name;
    }
    pb_catalog_time(t, time, first);
    return 0;
}

int pb_archive_read_tables(struct pb_wire *m, struct pb_catalog *c, unsigned source)
{
    uint32_t n = pb_wire_u32(m), lengths[2];
    char full[128];
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < n; i++) {
        const char *name = pb_wire_text(m, &lengths[0]), *columns = pb_wire_text(m, &lengths[1]);
        if (!name || !columns || lengths[0] >= sizeof(full))
            return -EBADMSG;
        snprintf(full, sizeof(full), "%.*s", (int)lengths[0], name);
        r = add_table(c, source, full, columns, lengths[1]);
    }
    return r;
}

static void forget_files(struct pb_cat_table *t)
{
    for (unsigned i = 0; i < t->narchived; i++) {
        struct pb_cat_archived *a = &t->archived[i];
        for (unsigned k = 0; k < a->nfiles; k++)
            free(a->files[k].path);
        free(a->files);
        free(a->held);
        a->files = NULL;
        a->held = NULL;
        a->nfiles = 0;
        a->nheld = 0;
    }
}

void pb_archive_release(struct pb_cat_table *t)
{
    forget_files(t);
    free(t->archived);
}

int pb_archive_open_folder(struct pb_engine *e, const char *folder, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    char *with_slash = NULL;
    size_t size;

    FILE *out = open_memstream(&sql, &size);
    e->archive = strdup(folder);
    if (!out || !e->archive || asprintf(&with_slash, "%s/", folder) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    fputs("SET allowed_directories = [", out);
    pb_put_quoted(out, with_slash, '\'');
    fputs("]", out);
    free(with_slash);
    return fclose(out) == 0 ? pb_engine_do(e, sql, err) : pb_fail(err, -ENOMEM, "out of memory");
}

/* --- files --- */

bool pb_archive_holds(const struct pb_cat_table *t, unsigned source, uint64_t serial)
{
    for (unsigned i = 0; i < t->narchived; i++) {
        const struct pb_cat_archived *a = &t->archived[i];
        if (a->source == source)
            return pb_archive_spans_hold(a->held, a->nheld, serial);
    }
    return false;
}

/* Rows of segments that are in a file are not read from the arena too. */
static void leave_out(struct pb_cat_table *t)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < t->nsegments; i++) {
        struct pb_cat_segment *s = &t->segments[i];
        if (pb_archive_holds(t, t->parts[s->part].source, s->view.serial)) {
            t->nrows -= s->view.nrows;
            pb_pool_give(&s->view);
        } else {
            t->segments[kept++] = *s;
        }
    }
    t->nsegments = kept;
}

static int add_file(struct pb_cat_table *t, unsigned source, const char *path, uint32_t length)
{
    _cleanup_free_ char *copy = strndup(path, length);
    struct pb_archive_name name;
    struct pb_archive_span spans[PB_ARCHIVE_BATCH];
    unsigned i = 0;

    const char *base = copy ? strrchr(copy, '/') : NULL;
    while (i < t->narchived && t->archived[i].source != source)
        i++;
    if (!copy)
        return -ENOMEM;
    if (!base || i == t->narchived || pb_archive_name_read(base + 1, &name) < 0)
        return -EBADMSG;
    struct pb_cat_archived *a = &t->archived[i];
    struct scanned_file *more = realloc(a->files, (a->nfiles + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    a->files = more;
    a->files[a->nfiles++] = (struct scanned_file){.path = pb_take_ptr(copy), .ncolumns = name.ncolumns};
    int n = pb_archive_serials_unpack(name.serials, spans);
    if (n <= 0)
        return 0;
    struct pb_archive_span *held = realloc(a->held, (a->nheld + (size_t)n) * sizeof(*held));
    if (!held)
        return -ENOMEM;
    a->held = held;
    memcpy(held + a->nheld, spans, (size_t)n * sizeof(*held));
    a->nheld += (size_t)n;
    return 0;
}

static int read_files(struct pb_wire *in, struct pb_cat_table *t, struct pb_err *err)
{
    uint32_t number = pb_wire_u32(in);
    int64_t oldest = (int64_t)pb_wire_u64(in);
    uint32_t n = pb_wire_u32(in);
    int r = pb_wire_ok(in) && in->type == PB_SQL_FILES && number < 4096 ? -(int)number : -EBADMSG;

    for (uint32_t i = 0; r == 0 && i < n; i++) {
        uint32_t source = pb_wire_u32(in), length;
        const char *path = pb_wire_text(in, &length);
        r = path ? add_file(t, source, path, length) : -EBADMSG;
    }
    for (unsigned i = 0; i < t->narchived; i++)
        t->archived[i].nheld = pb_archive_spans_join(t->archived[i].held, t->archived[i].nheld);
    if (t->time_column >= 0 && oldest < t->oldest)
        t->oldest = oldest;
    return r < 0 ? pb_fail(err, r, "the archive of %s cannot be read: %s", t->name, strerror(-r)) : 0;
}

/* Asks the broker for files. last: the second of the two requests, whose answer counts. */
static int ask_for_files(struct pb_engine *e, struct pb_cat_table *t, bool last, struct pb_err *err)
{
    struct pb_wire in = {0};
    char full[2 * PB_CAT_NAME];

    forget_files(t);
    if (t->narchived == 0 || !e->archive)
        return 0;
    if (strcmp(t->schema, "main") == 0)
        snprintf(full, sizeof(full), "%s", t->name);
    else
        snprintf(full, sizeof(full), "%s.%s", t->schema, t->name);
    pb_wire_begin(&e->out, PB_SQL_WHICH);
    pb_wire_put_text(&e->out, full, strlen(full));
    pb_wire_put_u64(&e->out, (uint64_t)(t->touched ? t->range.from : INT64_MIN));
    pb_wire_put_u64(&e->out, (uint64_t)(t->touched ? t->range.to : INT64_MAX));
    pb_wire_put_u32(&e->out, last);
    int r = pb_engine_send(e, &e->out);
    if (r == 0)
        r = pb_engine_receive(e, &in);
    r = r < 0 ? pb_fail(err, r, "the archive could not be requested: %s", strerror(-r))
              : read_files(&in, t, err);
    pb_wire_done(&in);
    return r;
}

int pb_archive_look(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err)
{
    /* Where only files are left one request is enough. */
    return t->nparts ? ask_for_files(e, t, false, err) : 0;
}

int pb_archive_take(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err)
{
    int r = ask_for_files(e, t, true, err);
    if (r == 0)
        leave_out(t);
    return r;
}

bool pb_archive_has_files(const struct pb_cat_table *t)
{
    for (unsigned i = 0; i < t->narchived; i++)
        if (t->archived[i].nfiles)
            return true;
    return false;
}

/* --- the view --- */

/* A column as the scan gives it: values stored in a wider or signed type get their original type. */
static void put_column(FILE *out, const struct pb_cat_column *c, bool held)
{
    fputs("CAST(", out);
    if (!held)
        fputs("NULL", out);
    else if (c->type == PB_U64) {
        pb_put_quoted(out, c->name, '"');
        fputs("::HUGEINT + CASE WHEN ", out);
        pb_put_quoted(out, c->name, '"');
        fputs(" < 0 THEN 18446744073709551616::HUGEINT ELSE 0 END", out);
    } else
        pb_put_quoted(out, c->name, '"');
    fprintf(out, " AS %s) AS ", pb_stored_type_name(c->type));
    pb_put_quoted(out, c->name, '"');
}

static void put_path(FILE *out, const struct pb_engine *e, const struct scanned_file *file)
{
    _cleanup_free_ char *path = NULL;

    if (asprintf(&path, "%s/%s", e->archive, file->path) < 0)
        path = NULL;
    pb_put_quoted(out, path ? path : "", '\'');
}

static void put_rank(FILE *out, int32_t rank)
{
    if (rank < 0)
        fputs("NULL::INTEGER", out);
    else
        fprintf(out, "%d::INTEGER", (int)rank);
}

static void put_columns(FILE *out, const struct pb_cat_table *t, const struct pb_cat_archived *a,
                        unsigned ncolumns)
{
    for (unsigned i = 0; i < t->ncolumns; i++) {
        fputs(i ? ", " : "", out);
        put_column(out, &t->columns[i], a->map[i] >= 0 && (unsigned)a->map[i] < ncolumns);
    }
}

/* Files from `at` on with as many columns as the first: they have one schema. Returns the index of the next
 * group. */
static unsigned put_files(FILE *out, const struct pb_engine *e, const struct pb_cat_table *t,
                          const struct pb_cat_archived *a, unsigned at)
{
    const struct pb_cat_source *source = &e->request->catalog.sources[a->source];
    unsigned ncolumns = a->files[at].ncolumns, first = at;

    fputs("SELECT ", out);
    if (e->request->catalog.ranks) {
        put_rank(out, source->rank);
        fprintf(out, " AS rank, %d::INTEGER AS target_pid, ", (int)source->pid);
    }
    put_columns(out, t, a, ncolumns);
    fputs(" FROM read_parquet([", out);
    for (; at < a->nfiles && a->files[at].ncolumns == ncolumns; at++) {
        fputs(at > first ? ", " : "", out);
        put_path(out, e, &a->files[at]);
    }
    fputs("], hive_partitioning = false) UNION ALL ", out);
    return at;
}

/* --- thousands of runs --- */

/* Each part of a union costs DuckDB milliseconds, each file a third of one. So files of many runs with the
 * same schema are one part, and a table of paths, which is joined, tells the run of each. The price: a query
 * for one rank reads all files, which it would not with a union. */
enum { MANY_RUNS = 256 };
#define PATH_COLUMN "probing:path" /* no table has such a name */

struct one_file {
    const struct pb_cat_archived *of;
    const struct scanned_file *file;
};

/* Sorts files with the same schema together. */
static int by_schema(const void *a, const void *b, void *ncolumns)
{
    const struct one_file *x = a, *y = b;

    if (x->file->ncolumns != y->file->ncolumns)
        return x->file->ncolumns < y->file->ncolumns ? -1 : 1;
    return memcmp(x->of->map, y->of->map, *(const unsigned *)ncolumns * sizeof(x->of->map[0]));
}

static void put_group(FILE *out, const struct pb_engine *e, const struct pb_cat_table *t,
                      const struct one_file *files, size_t n)
{
    fputs("SELECT \"probing:rank\" AS rank, \"probing:pid\" AS target_pid, ", out);
    put_columns(out, t, files->of, files->file->ncolumns);
    fputs(" FROM read_parquet([", out);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ", " : "", out);
        put_path(out, e, files[i].file);
    }
    fputs("], hive_partitioning = false, filename = '" PATH_COLUMN "') JOIN (VALUES ", out);
    for (size_t i = 0; i < n; i++) {
        const struct pb_cat_source *source = &e->request->catalog.sources[files[i].of->source];
        fputs(i ? ", (" : "(", out);
        put_path(out, e, files[i].file);
        fputs(", ", out);
        put_rank(out, source->rank);
        fprintf(out, ", %d::INTEGER)", (int)source->pid);
    }
    fputs(") runs(\"probing:name\", \"probing:rank\", \"probing:pid\") ON \"" PATH_COLUMN
          "\" = \"probing:name\" UNION ALL ",
          out);
}

static int put_many(FILE *out, const struct pb_engine *e, const struct pb_cat_table *t)
{
    unsigned ncolumns = t->ncolumns;
    size_t n = 0, next;

    for (unsigned i = 0; i < t->narchived; i++)
        n += t->archived[i].nfiles;
    _cleanup_free_ struct one_file *all = calloc(n + 1, sizeof(*all));
    if (!all)
        return -ENOMEM;
    n = 0;
    for (unsigned i = 0; i < t->narchived; i++)
        for (unsigned k = 0; k < t->archived[i].nfiles; k++)
            all[n++] = (struct one_file){&t->archived[i], &t->archived[i].files[k]};
    qsort_r(all, n, sizeof(*all), by_schema, &ncolumns);
    for (size_t i = 0; i < n; i = next) {
        for (next = i + 1; next < n && by_schema(&all[i], &all[next], &ncolumns) == 0;)
            next++;
        put_group(out, e, t, &all[i], next - i);
    }
    return 0;
}

int pb_archive_select(struct pb_engine *e, const struct pb_cat_table *t, char **ret)
{
    size_t size;
    int r = 0;

    *ret = NULL;
    if (!pb_archive_has_files(t))
        return 0;
    FILE *out = open_memstream(ret, &size);
    if (!out)
        return -ENOMEM;
    bool many = t->narchived > MANY_RUNS && e->request->catalog.ranks;
    if (many)
        r = put_many(out, e, t);
    for (unsigned i = 0; !many && i < t->narchived; i++)
        for (unsigned at = 0; at < t->archived[i].nfiles;)
            at = put_files(out, e, t, &t->archived[i], at);
    return fclose(out) == 0 ? r : -ENOMEM;
}
