/* archive_write: see archive_write.h. */
#include "engine/writer/archive_write.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/limits.h"
#include "engine/shared/archive.h"
#include "engine/shared/sql_text.h"
#include "engine/shared/wire.h"
#include "engine/worker/catalog.h"
#include "engine/worker/pool.h"
#include "engine/worker/sandbox.h"
#include "engine/worker/scan.h"
#include "engine/writer/parquet_db.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int64_t DAY_NS = 86400 * INT64_C(1000000000);

struct day {
    int64_t number;      /* days after 1970-01-01 */
    int64_t first, last; /* UTC ns */
    uint64_t rows;
};

struct batch {
    struct pb_catalog catalog;
    struct pb_cat_table *table;
    struct pb_archive_columns columns;
    int time; /* the part's time column; -1: none */
    bool dead;
    uint64_t serials[PB_ARCHIVE_BATCH];
    uint32_t rows[PB_ARCHIVE_BATCH];
    bool used[PB_ARCHIVE_BATCH];
    unsigned n;
    struct day days[PB_ARCHIVE_PARTS];
    unsigned ndays;
    char compression[32];
    int files[PB_ARCHIVE_PARTS]; /* one per day, to write to */
};

static struct pb_writer writer; /* the only one in this process */

/* --- reading segments --- */

/* The entry of a day, added if new and there is room: a process may set times by hand, on any number of
 * days. */
static struct day *day_of(struct batch *b, int64_t ns)
{
    int64_t number = ns / DAY_NS - (ns % DAY_NS < 0);
    unsigned i = 0;

    while (i < b->ndays && b->days[i].number < number)
        i++;
    if (i < b->ndays && b->days[i].number == number)
        return &b->days[i];
    if (b->ndays == PB_ARCHIVE_PARTS)
        return NULL;
    memmove(&b->days[i + 1], &b->days[i], (b->ndays++ - i) * sizeof(b->days[0]));
    b->days[i] = (struct day){.number = number, .first = INT64_MAX, .last = INT64_MIN};
    return &b->days[i];
}

static bool take_times(struct batch *b, const struct pb_view *v)
{
    const int64_t *times = b->time >= 0 ? v->columns[b->time].cells : NULL;

    for (uint32_t i = 0; times && i < v->nrows; i++) {
        if (pb_view_is_null(v, (unsigned)b->time, i))
            continue;
        struct day *day = day_of(b, times[i]);
        if (!day)
            return false;
        day->first = times[i] < day->first ? times[i] : day->first;
        day->last = times[i] > day->last ? times[i] : day->last;
    }
    return true;
}

/* One segment with more days than a batch may have files: a table written to once an hour, or times set by
 * hand. */
static void take_all_days(struct batch *b, const struct pb_view *v)
{
    const int64_t *times = v->columns[b->time].cells;
    struct day all = {.first = INT64_MAX, .last = INT64_MIN};

    for (uint32_t i = 0; i < v->nrows; i++) {
        if (pb_view_is_null(v, (unsigned)b->time, i))
            continue;
        all.first = times[i] < all.first ? times[i] : all.first;
        all.last = times[i] > all.last ? times[i] : all.last;
    }
    all.number = PB_ARCHIVE_UNDATED;
    b->days[0] = all;
    b->ndays = 1;
}

/* Copies complete segments; one that was recycled, or still waits for a row, is left out. */
static int load_segments(struct batch *b)
{
    struct pb_cat_table *t = b->table;
    const struct pb_cat_part *part = &t->parts[0];
    struct pb_segment_info *list = NULL;

    int n = pb_reader_segments(part->reader, part->table, &list);
    t->segments = n < 0 ? NULL : calloc(b->n + 1, sizeof(*t->segments));
    if (!t->segments) {
        free(list);
        return n < 0 ? n : -ENOMEM;
    }
    for (unsigned i = 0; i < b->n; i++) {
        int k = 0;
        while (k < n && list[k].serial != b->serials[i])
            k++;
        struct pb_cat_segment *s = &t->segments[t->nsegments];
        const struct batch before = {.ndays = b->ndays};
        struct day days[PB_ARCHIVE_PARTS];
        memcpy(days, b->days, sizeof(days));
        pb_pool_take(&s->view);
        bool good = k < n && pb_view_load(part->reader, &list[k], &s->view) == 0 &&
                    pb_catalog_fits(t, 0, &s->view) && (s->view.complete || b->dead);
        bool fits = good && take_times(b, &s->view);
        /* Alone in its batch, it becomes one file for all of its days, in the folder without a date. */
        bool alone = good && !fits && t->nsegments == 0;
        if (alone)
            take_all_days(b, &s->view);
        if (!fits && !alone) {
            /* Too many days for this batch: it goes into the next one. */
            memcpy(b->days, days, sizeof(days));
            b->ndays = before.ndays;
            pb_view_done(&s->view);
            continue;
        }
        b->used[i] = true;
        b->rows[i] = s->view.nrows;
        t->nrows += s->view.nrows;
        t->nsegments++;
        if (alone)
            break;
    }
    free(list);
    return 0;
}

/* --- SQL --- */

/* A column in types that every engine reads: signed, times in microseconds (rounded down) with the
 * nanoseconds in another column. Unsigned 64-bit values keep their bits. */
static void put_column(FILE *out, const struct pb_archive_columns *columns, unsigned i)
{
    static const char *const casts[PB_TYPE_END] = {
        [PB_U8] = "SMALLINT", [PB_U16] = "INTEGER", [PB_U32] = "BIGINT"};
    const struct pb_archive_column *c = &columns->at[i];
    char quoted[2 * sizeof(c->name) + 3], ns[72];

    FILE *name = fmemopen(quoted, sizeof(quoted), "w");
    if (!name)
        return;
    pb_put_quoted(name, c->name, '"');
    putc('\0', name);
    fclose(name);
    if (c->type == PB_TIMESTAMP)
        fprintf(out, "make_timestamp(%s // 1000 - (%s %% 1000 < 0)::BIGINT) AS %s", quoted, quoted, quoted);
    else if (c->type == PB_U64)
        fprintf(out,
                "CASE WHEN %s > 9223372036854775807 THEN (%s::HUGEINT - 18446744073709551616)::BIGINT "
                "ELSE %s::BIGINT END AS %s",
                quoted, quoted, quoted, quoted);
    else if (casts[c->type])
        fprintf(out, "%s::%s AS %s", quoted, casts[c->type], quoted);
    else
        fputs(quoted, out);
    if (pb_archive_column_ns(columns, i, ns)) {
        fprintf(out, ", %s AS ", quoted);
        pb_put_quoted(out, ns, '"');
    }
}

static void put_day(FILE *out, const struct batch *b, unsigned day)
{
    int64_t from = b->days[day].number * DAY_NS;

    if (b->ndays < 2)
        return;
    fputs(" WHERE ", out);
    pb_put_quoted(out, b->columns.at[b->columns.time].name, '"');
    fprintf(out, " BETWEEN %" PRId64 " AND %" PRId64, from, from + DAY_NS - 1);
    /* Rows without a time go to the first day. */
    if (day == 0) {
        fputs(" OR ", out);
        pb_put_quoted(out, b->columns.at[b->columns.time].name, '"');
        fputs(" IS NULL", out);
    }
}

static int write_day(struct batch *b, unsigned day, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    const char *between = "";
    size_t size;

    FILE *out = open_memstream(&sql, &size);
    if (!out)
        return pb_fail(err, -ENOMEM, "out of memory");
    fputs("COPY (SELECT ", out);
    for (unsigned i = 0; i < b->columns.n; i++) {
        if (!b->columns.at[i].stored)
            continue;
        fputs(between, out);
        put_column(out, &b->columns, i);
        between = ", ";
    }
    fprintf(out, " FROM pb_scan('%s.%s')", b->table->schema, b->table->name);
    put_day(out, b, day);
    fprintf(out, ") TO '" PB_SANDBOX_FILE "%d' (FORMAT parquet, COMPRESSION %s, USE_TMP_FILE false)",
            b->files[day], b->compression);
    return fclose(out) == 0 ? pb_writer_run(&writer, sql, err) : pb_fail(err, -ENOMEM, "out of memory");
}

/* --- requests --- */

static int find_table(struct batch *b, const char *full, struct pb_err *err)
{
    const char *dot = strchr(full, '.');
    char schema[PB_CAT_NAME];
    struct pb_table_info info;

    snprintf(schema, sizeof(schema), "%.*s", dot ? (int)(dot - full) : 0, full);
    b->table = pb_catalog_find(&b->catalog, schema, dot ? dot + 1 : full);
    if (!b->table || b->table->nparts != 1 ||
        pb_reader_table(b->table->parts[0].reader, b->table->parts[0].table, &info) < 0)
        return pb_fail(err, -ENOENT, "there is no table %s", full);
    b->columns.n = info.ncolumns;
    for (unsigned i = 0; i < info.ncolumns; i++) {
        struct pb_archive_column *c = &b->columns.at[i];
        *c = (struct pb_archive_column){.type = info.columns[i].type,
                                        .late = info.columns[i].flags & PB_COL_LATE};
        snprintf(c->name, sizeof(c->name), "%s", info.columns[i].name);
    }
    pb_archive_columns_judge(&b->columns);
    b->time = b->columns.time;
    return 0;
}

static int read_request(struct pb_wire *m, struct batch *b, struct pb_err *err)
{
    char full[128];
    uint32_t lengths[2] = {0};

    b->dead = pb_wire_u32(m);
    const char *name = pb_wire_text(m, &lengths[0]), *compression = pb_wire_text(m, &lengths[1]);
    b->n = pb_wire_u32(m);
    if (!pb_wire_ok(m) || m->nfds != 1 || b->n > PB_ARCHIVE_BATCH || lengths[0] >= sizeof(full) ||
        lengths[1] >= sizeof(b->compression))
        return pb_fail(err, -EBADMSG, "the request is invalid");
    snprintf(full, sizeof(full), "%.*s", (int)lengths[0], name);
    snprintf(b->compression, sizeof(b->compression), "%.*s", (int)lengths[1], compression);
    for (unsigned i = 0; i < b->n; i++)
        b->serials[i] = pb_wire_u64(m);
    struct pb_cat_source *source = calloc(2, sizeof(*source));
    if (!pb_wire_ok(m) || !source) {
        free(source);
        return pb_fail(err, -EBADMSG, "the request is invalid");
    }
    source->fd = m->fds[0];
    m->fds[0] = -1;
    int r = pb_catalog_init(&b->catalog, source, 1, err);
    return r < 0 ? r : find_table(b, full, err);
}

/* A batch without times gets the current time. */
static void set_today(struct batch *b)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    struct day *day = day_of(b, ns);
    day->first = day->last = ns;
}

/* Requests a file for each day. */
static int ask_for_files(int socket, struct batch *b, struct pb_err *err)
{
    struct pb_wire m = {0};

    pb_wire_begin(&m, PB_SQL_NEED);
    pb_wire_put_u32(&m, b->ndays);
    int r = pb_wire_send(socket, &m, 0);
    if (r == 0)
        r = pb_wire_receive(socket, &m, 0);
    if (r == 0 && (m.type != PB_SQL_LIVE || m.nfds != b->ndays))
        r = -EBADMSG;
    for (unsigned i = 0; i < m.nfds; i++)
        if (r == 0)
            b->files[i] = m.fds[i];
        else
            close(m.fds[i]);
    m.nfds = 0;
    pb_wire_done(&m);
    return r < 0 ? pb_fail(err, r, "there is no file to write to: %s", strerror(-r)) : 0;
}

static void close_files(struct batch *b)
{
    for (unsigned i = 0; i < PB_ARCHIVE_PARTS; i++)
        if (b->files[i] >= 0)
            close(b->files[i]);
}

static int write_batch(int socket, struct batch *b, struct pb_err *err)
{
    struct pb_scan_request scans = {.catalog = &b->catalog, .threads = 1, .raw_times = true};

    int r = load_segments(b);
    if (r < 0)
        return pb_fail(err, r, "%s cannot be read: %s", b->table->name, strerror(-r));
    b->table->taken = b->table->whole = true;
    if (b->table->nrows == 0) {
        b->ndays = 0;
        return 0;
    }
    if (b->ndays == 0)
        set_today(b);
    r = ask_for_files(socket, b, err);
    pb_scan_begin(&scans);
    for (unsigned i = 0; r == 0 && i < b->ndays; i++)
        r = write_day(b, i, err);
    pb_scan_begin(NULL);
    return r;
}

static int64_t floor_us(int64_t ns)
{
    return ns / 1000 - (ns % 1000 < 0);
}

static void put_answer(struct pb_wire *out, const struct batch *b)
{
    unsigned used = 0;

    for (unsigned i = 0; i < b->n; i++)
        used += b->used[i];
    pb_wire_begin(out, PB_SQL_DONE);
    pb_wire_put_u32(out, b->columns.n);
    pb_wire_put_u32(out, used);
    for (unsigned i = 0; i < b->n; i++) {
        if (!b->used[i])
            continue;
        pb_wire_put_u64(out, b->serials[i]);
        pb_wire_put_u32(out, b->rows[i]);
    }
    pb_wire_put_u32(out, b->ndays);
    for (unsigned i = 0; i < b->ndays; i++) {
        pb_wire_put_u64(out, (uint64_t)b->days[i].number);
        pb_wire_put_u64(out, (uint64_t)floor_us(b->days[i].first));
        pb_wire_put_u64(out, (uint64_t)floor_us(b->days[i].last));
    }
}

static void put_failure(struct pb_wire *out, int r, const struct pb_err *err)
{
    const char *text = pb_err_text(err, r);

    pb_wire_begin(out, PB_SQL_ERROR);
    pb_wire_put_u32(out, (uint32_t)-r);
    pb_wire_put_text(out, text, strlen(text));
}

/* Copies the rows of several of our files, in order, into one: the first descriptor is the file to write. */
static int merge_files(struct pb_wire *in, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    uint32_t length;
    size_t size;

    const char *compression = pb_wire_text(in, &length);
    FILE *out = compression && length < 32 && in->nfds > 2 ? open_memstream(&sql, &size) : NULL;
    if (!out)
        return pb_fail(err, -EBADMSG, "the request is invalid");
    fputs("COPY (SELECT * FROM read_parquet([", out);
    for (unsigned i = 1; i < in->nfds; i++)
        fprintf(out, "%s'" PB_SANDBOX_FILE "%d'", i > 1 ? ", " : "", in->fds[i]);
    fprintf(out,
            "], hive_partitioning = false)) TO '" PB_SANDBOX_FILE
            "%d' (FORMAT parquet, COMPRESSION %.*s, USE_TMP_FILE false)",
            in->fds[0], (int)length, compression);
    return fclose(out) == 0 ? pb_writer_run(&writer, sql, err) : pb_fail(err, -ENOMEM, "out of memory");
}

static int answer_merge(int socket, struct pb_wire *in, struct pb_wire *out)
{
    struct pb_err err = {0};

    int r = merge_files(in, &err);
    if (r == 0)
        pb_wire_begin(out, PB_SQL_DONE);
    else
        put_failure(out, r, &err);
    return pb_wire_send(socket, out, 0);
}

static int answer_request(int socket, struct pb_wire *in, struct pb_wire *out)
{
    struct batch *b = calloc(1, sizeof(*b));
    struct pb_err err = {0};

    for (unsigned i = 0; b && i < PB_ARCHIVE_PARTS; i++)
        b->files[i] = -1;
    int r = !b                           ? pb_fail(&err, -ENOMEM, "out of memory")
            : in->type != PB_SQL_REQUEST ? pb_fail(&err, -EBADMSG, "no request")
                                         : read_request(in, b, &err);
    if (r == 0)
        r = write_batch(socket, b, &err);
    if (r == 0) {
        put_answer(out, b);
    } else {
        put_failure(out, r, &err);
    }
    if (b) {
        close_files(b);
        pb_catalog_done(&b->catalog);
    }
    free(b);
    return pb_wire_send(socket, out, 0);
}

static int open_database(struct pb_err *err)
{
    int r = pb_writer_open(&writer, 1ull << 30, err);

    if (r == 0 && pb_scan_register(writer.connection) < 0)
        r = pb_fail(err, -EIO, "DuckDB did not take our functions");
    return r;
}

int pb_archive_write(int socket)
{
    struct pb_wire in = {0}, out = {0};
    struct pb_err err = {0};

    signal(SIGPIPE, SIG_IGN);
    pb_limits_volunteer();
    int r = open_database(&err);
    if (r < 0) {
        put_failure(&out, r, &err);
        pb_wire_send(socket, &out, 0);
        return 1;
    }
    while (r == 0 && pb_wire_receive(socket, &in, 0) == 0)
        r = in.type == PB_SQL_MERGE ? answer_merge(socket, &in, &out) : answer_request(socket, &in, &out);
    return 0;
}
