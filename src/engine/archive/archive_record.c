/* archive_record: see archive_record.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "engine/archive/archive_merge.h"
#include "engine/archive/archive_record_impl.h"
#include "engine/caller/broker_slot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Late cells are filled in soon after their row: segments of such tables wait a little. */
static const int64_t LATE_NS = 2 * INT64_C(1000000000);
static const uint64_t MAX_BYTES = 64 << 20; /* of a batch's segments */

enum { PASS_ROUNDS = 16 };

/* --- archived segments --- */

static int by_serial(const void *a, const void *b)
{
    uint64_t x = ((const struct pb_archiver_done *)a)->serial,
             y = ((const struct pb_archiver_done *)b)->serial;
    return x < y ? -1 : x > y;
}

static struct pb_archiver_done *find_done(const struct pb_archiver_part *t, uint64_t serial)
{
    const struct pb_archiver_done key = {.serial = serial};
    return t->ndone ? bsearch(&key, t->done, t->ndone, sizeof(key), by_serial) : NULL;
}

static int add_done(struct pb_archiver_part *t, const struct pb_archiver_done *more, size_t n)
{
    struct pb_archiver_done *all = realloc(t->done, (t->ndone + n) * sizeof(*all));

    if (!all)
        return -ENOMEM;
    t->done = all;
    memcpy(all + t->ndone, more, n * sizeof(*more));
    t->ndone += n;
    return 0;
}

static void sort_done(struct pb_archiver_part *t)
{
    size_t kept = 0;

    if (t->ndone)
        qsort(t->done, t->ndone, sizeof(*t->done), by_serial);
    for (size_t i = 0; i < t->ndone; i++)
        if (kept == 0 || t->done[kept - 1].serial != t->done[i].serial)
            t->done[kept++] = t->done[i];
    t->ndone = kept;
}

static int open_partition(const struct pb_archiver *r, const struct pb_archiver_part *t)
{
    char path[PB_ARCHIVE_PATH];

    if (snprintf(path, sizeof(path), "%s/%s", t->name, r->run.partition) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    return pb_archive_make_path(r->folder_fd, path);
}

/* The spans of serials in the names of a table's files, joined, in an array from malloc. */
static int read_spans(struct pb_archiver_part *t, const struct pb_archive_files *files,
                      struct pb_archive_span **ret)
{
    struct pb_archive_span *all = malloc((files->n * PB_ARCHIVE_BATCH + 1) * sizeof(*all));
    size_t nspans = 0;

    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < files->n; i++) {
        const struct pb_archive_name *name = &files->at[i].name;
        int n = pb_archive_serials_unpack(name->serials, all + nspans);
        nspans += n > 0 ? (size_t)n : 0;
        t->total = name->total > t->total ? name->total : t->total;
    }
    *ret = all;
    return (int)pb_archive_spans_join(all, nspans);
}

/* Finds from file names which segments of the arena (list) earlier recorders of this run have archived. */
static int list_done(struct pb_archiver *r, struct pb_archiver_part *t, const struct pb_segment_info *list,
                     int n)
{
    _cleanup_(pb_archive_files_done) struct pb_archive_files files = {0}, left = {0};
    _cleanup_free_ struct pb_archive_span *spans = NULL;
    char path[PB_ARCHIVE_PATH];

    if (snprintf(path, sizeof(path), "%s/%s", t->name, r->run.partition) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    _cleanup_close_ int partition =
        openat(r->folder_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (partition < 0 && errno == ENOENT) {
        t->listed = true;
        return 0;
    }
    int x = partition < 0 ? -errno : pb_archive_recover(partition, r->run.id);
    if (x == 0)
        x = pb_archive_files_read(r->folder, &r->run, t->name, &files, &left);
    if (x == 0)
        pb_merge_clean(r->folder_fd, &left);
    int nspans = x < 0 ? x : read_spans(t, &files, &spans);
    if (nspans < 0)
        return nspans;
    t->ndone = 0;
    for (int i = 0; x == 0 && i < n; i++)
        if (pb_archive_spans_hold(spans, (size_t)nspans, list[i].serial))
            x = add_done(t, &(struct pb_archiver_done){.serial = list[i].serial}, 1);
    sort_done(t);
    t->listed = x == 0;
    return x;
}

/* Counts the rows of archived segments that are still in the arena, and drops the others: with the
 * overwritten rows this gives the number lost. */
static void count_lost_rows(struct pb_archiver *r, struct pb_archiver_part *t,
                            const struct pb_segment_info *list, int n, uint64_t recycled)
{
    const uint64_t nothing[PB_MAX_COLUMNS / 64] = {0};
    uint64_t live = 0;
    size_t kept = 0;

    for (size_t i = 0; i < t->ndone; i++) {
        int k = 0;
        while (k < n && list[k].serial != t->done[i].serial)
            k++;
        if (k == n)
            continue;
        struct pb_view v = {.wanted = nothing};
        if (!t->done[i].counted && pb_view_load(r->reader, &list[k], &v) == 0) {
            t->done[i].rows = v.nrows;
            t->done[i].counted = true;
        }
        pb_view_done(&v);
        live += t->done[i].rows;
        t->done[kept++] = t->done[i];
    }
    t->ndone = kept;
    uint64_t moved = t->total > live ? t->total - live : 0;
    if (recycled > moved && recycled - moved > t->lost)
        t->lost = recycled - moved;
}

/* --- writing --- */

static int keep_columns(struct pb_archiver *r, struct pb_archiver_part *t, const struct pb_table_info *info)
{
    struct pb_archive_columns columns = {.n = info->ncolumns};
    char name[80], *text = NULL;
    size_t size;

    for (unsigned i = 0; i < info->ncolumns; i++) {
        const struct pb_column_info *from = &info->columns[i];
        struct pb_archive_column *c = &columns.at[i];
        *c = (struct pb_archive_column){.type = from->type, .late = from->flags & PB_COL_LATE};
        snprintf(c->name, sizeof(c->name), "%s", from->name);
        snprintf(c->unit, sizeof(c->unit), "%s", from->unit);
        snprintf(c->comment, sizeof(c->comment), "%s", from->comment);
    }
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return -ENOMEM;
    pb_archive_columns_write(out, &columns);
    if (fclose(out) != 0)
        return -ENOMEM;
    int x = 0;
    if (!t->columns || t->columns_size != size || memcmp(t->columns, text, size) != 0) {
        snprintf(name, sizeof(name), "%s.columns", t->name);
        x = pb_archive_put_text(r->own_fd, name, text, size);
        free(t->columns);
        t->columns = x == 0 ? pb_take_ptr(text) : NULL;
        t->columns_size = size;
    }
    free(text);
    return x;
}

/* The writer cannot open files: it is sent a new file for each day that it asks for. */
static int send_files(struct pb_archiver *r, int partition, const char *prefix, struct pb_err *err)
{
    uint32_t n = pb_wire_u32(&r->in);
    char name[80];
    int x = pb_wire_ok(&r->in) && n <= PB_ARCHIVE_PARTS ? 0 : -EBADMSG;

    pb_wire_begin(&r->out, PB_SQL_LIVE);
    for (uint32_t i = 0; x == 0 && i < n; i++) {
        snprintf(name, sizeof(name), "%s.%u", prefix, i + 1);
        int fd = openat(partition, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0)
            x = pb_fail(err, -errno, "the archive %s cannot be written: %s", r->folder, strerror(errno));
        else
            pb_wire_put_fd(&r->out, fd);
    }
    if (x == 0)
        x = pb_wire_send(r->writer, &r->out, 0);
    for (unsigned i = 0; i < r->out.nfds; i++)
        close(r->out.fds[i]);
    r->out.nfds = 0;
    return x;
}

/* Why the writer failed; received: the result of receiving its answer. */
static int read_failure(struct pb_archiver *r, int received, struct pb_err *err)
{
    uint32_t length, number = received == 0 ? pb_wire_u32(&r->in) : 0;
    const char *text = received == 0 ? pb_wire_text(&r->in, &length) : NULL;

    pb_archiver_close_writer(r);
    if (text && number > 0 && number < 4096)
        return pb_fail(err, -(int)number, "%.*s", (int)length, text);
    return pb_fail(err, received < 0 ? received : -EBADMSG, "the process that writes Parquet has ended");
}

static int ask_writer(struct pb_archiver *r, const struct pb_archiver_part *t, bool ended, int partition,
                      const char *prefix, const uint64_t *serials, size_t n, struct pb_err *err)
{
    struct pb_err why = {0};

    if (r->writer < 0 && (r->writer = pb_worker_start_archiver(err)) < 0)
        return r->writer;
    pb_wire_begin(&r->out, PB_SQL_REQUEST);
    pb_wire_put_u32(&r->out, ended);
    pb_wire_put_text(&r->out, t->name, strlen(t->name));
    pb_wire_put_text(&r->out, r->compression, strlen(r->compression));
    pb_wire_put_u32(&r->out, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        pb_wire_put_u64(&r->out, serials[i]);
    pb_wire_put_fd(&r->out, r->arena_fd);
    int x = pb_wire_send(r->writer, &r->out, 0);
    do {
        if (x == 0 || x == -EINTR)
            x = pb_wire_receive(r->writer, &r->in, 0);
        if (x == 0 && r->in.type == PB_SQL_NEED && (x = send_files(r, partition, prefix, err)) == 0)
            x = -EINTR;
    } while (x == -EINTR);
    if (x == 0 && r->in.type == PB_SQL_DONE)
        return 0;
    if (x < 0 && err->text[0]) {
        pb_archiver_close_writer(r);
        return x;
    }
    x = read_failure(r, x, &why);
    return pb_fail(err, x, "%s was not archived: %s", t->name, why.text);
}

/* The writer's report on a batch. */
struct written {
    struct pb_archiver_done done[PB_ARCHIVE_BATCH];
    uint64_t serials[PB_ARCHIVE_BATCH];
    unsigned n, nfiles;
    uint64_t rows;
    struct pb_archive_name names[PB_ARCHIVE_PARTS];
    char dates[PB_ARCHIVE_PARTS][PB_ARCHIVE_DATE];
};

static int read_answer(struct pb_archiver *r, const struct pb_archiver_part *t, struct written *w)
{
    struct pb_archive_name name = {.ncolumns = pb_wire_u32(&r->in)};

    w->n = pb_wire_u32(&r->in);
    if (w->n > PB_ARCHIVE_BATCH)
        return -EBADMSG;
    for (unsigned i = 0; i < w->n; i++) {
        w->serials[i] = w->done[i].serial = pb_wire_u64(&r->in);
        w->done[i].rows = pb_wire_u32(&r->in);
        w->done[i].counted = true;
        w->rows += w->done[i].rows;
    }
    w->nfiles = pb_wire_u32(&r->in);
    if (!pb_wire_ok(&r->in) || w->nfiles > PB_ARCHIVE_PARTS ||
        pb_archive_serials_pack(w->serials, w->n, name.serials) != w->n)
        return -EBADMSG;
    memcpy(name.run, r->run.id, sizeof(name.run));
    name.total = t->total + w->rows;
    name.parts = w->nfiles;
    for (unsigned i = 0; i < w->nfiles; i++) {
        pb_archive_date((int64_t)pb_wire_u64(&r->in), w->dates[i]);
        name.part = i + 1;
        name.first = (int64_t)pb_wire_u64(&r->in);
        name.last = (int64_t)pb_wire_u64(&r->in);
        w->names[i] = name;
    }
    return pb_wire_ok(&r->in) ? 0 : -EBADMSG;
}

static void remove_parts(int partition, const char *prefix)
{
    char name[80];

    for (unsigned i = 1; i <= PB_ARCHIVE_PARTS; i++) {
        snprintf(name, sizeof(name), "%s.%u", prefix, i);
        unlinkat(partition, name, 0);
    }
}

static int write_batch(struct pb_archiver *r, struct pb_archiver_part *t, bool ended, const uint64_t *serials,
                       size_t n, struct pb_archiver_table *report, struct pb_err *err)
{
    struct written w = {0};
    char prefix[64];

    snprintf(prefix, sizeof(prefix), ".tmp-%s-%d-%u", r->run.id, (int)getpid(), r->counter++);
    _cleanup_close_ int partition = open_partition(r, t);
    if (partition < 0)
        return pb_fail(err, partition, "the archive %s cannot be written: %s", r->folder,
                       strerror(-partition));
    err->text[0] = '\0';
    int x = ask_writer(r, t, ended, partition, prefix, serials, n, err);
    if (x == 0 && (x = read_answer(r, t, &w)) < 0)
        pb_fail(err, x, "%s was not archived: the process that writes Parquet gave an invalid answer",
                t->name);
    if (x == 0 && w.nfiles)
        x = pb_archive_commit(partition, prefix, w.names, (const char(*)[PB_ARCHIVE_DATE])w.dates, w.nfiles,
                              err);
    remove_parts(partition, prefix);
    if (x < 0) {
        /* Some files may have been renamed already: the names are read again. */
        t->listed = false;
        return x;
    }
    if (w.nfiles)
        memcpy(t->date, w.dates[w.nfiles - 1], sizeof(t->date));
    t->total += w.rows;
    report->files += w.nfiles;
    report->segments += w.n;
    report->rows += w.rows;
    x = w.n ? add_done(t, w.done, w.n) : 0;
    sort_done(t);
    return x < 0 ? pb_fail(err, x, "out of memory") : 0;
}

/* --- merging --- */

/* Argument of the callbacks of pb_merge_day. */
struct record_merging {
    struct pb_archiver *r;
    const struct pb_archiver_part *t;
    const struct pb_segment_info *list;
    int n;
};

/* A merged file stands for all segments in its range. A segment that is not archived yet would count as
 * archived: such a range has to wait. */
static bool is_whole(void *arg, uint64_t first, uint64_t last)
{
    const struct record_merging *m = arg;

    for (int i = 0; i < m->n; i++)
        if (m->list[i].serial >= first && m->list[i].serial <= last && !find_done(m->t, m->list[i].serial))
            return false;
    return true;
}

static int write_merged(void *arg, const int *fds, size_t n, struct pb_err *err)
{
    struct pb_archiver *r = ((struct record_merging *)arg)->r;

    if (r->writer < 0 && (r->writer = pb_worker_start_archiver(err)) < 0)
        return r->writer;
    pb_wire_begin(&r->out, PB_SQL_MERGE);
    pb_wire_put_text(&r->out, r->compression, strlen(r->compression));
    for (size_t i = 0; i < n; i++)
        pb_wire_put_fd(&r->out, fds[i]);
    int x = pb_wire_send(r->writer, &r->out, 0);
    r->out.nfds = 0;
    do {
        if (x == 0 || x == -EINTR)
            x = pb_wire_receive(r->writer, &r->in, 0);
    } while (x == -EINTR);
    return x == 0 && r->in.type == PB_SQL_DONE ? 0 : read_failure(r, x, err);
}

/* Merging is optional: a failure is reported, and the files stay small. */
static void merge_files(struct pb_archiver *r, struct pb_archiver_part *t, const struct pb_segment_info *list,
                        int n, struct pb_archiver_table *report)
{
    struct record_merging m = {.r = r, .t = t, .list = list, .n = n};
    char prefix[64];

    if (t->passed && t->passed--)
        return;
    snprintf(prefix, sizeof(prefix), ".tmp-%s-%d-%u", r->run.id, (int)getpid(), r->counter++);
    _cleanup_close_ int partition = open_partition(r, t);
    const struct pb_merge_day day = {.top = r->folder_fd,
                                     .partition = partition,
                                     .date = t->date,
                                     .run = r->run.id,
                                     .prefix = prefix,
                                     .is_whole = is_whole,
                                     .write = write_merged,
                                     .arg = &m};
    int x = partition < 0 ? partition : pb_merge_day(&day, &report->trouble);
    report->merged = x > 0 ? (unsigned)x : 0;
    t->passed = x < 0 ? PASS_ROUNDS : 0;
    t->date[0] = '\0';
}

/* --- rounds --- */

static bool has_late_cells(const struct pb_table_info *info)
{
    for (unsigned i = 0; i < info->ncolumns; i++)
        if (info->columns[i].flags & PB_COL_LATE)
            return true;
    return false;
}

static bool is_closed(const struct pb_segment_info *s, const struct pb_table_info *info, bool ended)
{
    struct timespec now;

    if (ended || s->open)
        return ended;
    clock_gettime(CLOCK_REALTIME, &now);
    return !has_late_cells(info) || s->last < now.tv_sec * INT64_C(1000000000) + now.tv_nsec - LATE_NS;
}

/* The serials of closed segments that are not archived, ascending, in an array from malloc. */
static int choose_segments(const struct pb_archiver_part *t, const struct pb_table_info *info,
                           const struct pb_segment_info *list, int n, bool ended, uint64_t **ret)
{
    uint64_t *serials = malloc((size_t)n * sizeof(*serials) + 1);
    int chosen = 0;

    if (!serials)
        return -ENOMEM;
    for (int i = n; i-- > 0;)
        if (is_closed(&list[i], info, ended) && !find_done(t, list[i].serial))
            serials[chosen++] = list[i].serial;
    *ret = serials;
    return chosen;
}

static int archive_table(struct pb_archiver *r, struct pb_archiver_part *t, bool ended,
                         struct pb_archiver_table *report, struct pb_err *err)
{
    _cleanup_free_ struct pb_segment_info *list = NULL;
    _cleanup_free_ uint64_t *serials = NULL;
    struct pb_table_info info;
    char packed[PB_ARCHIVE_SERIALS + 1];

    int x = pb_reader_table(r->reader, t->index, &info);
    int n = x < 0 ? x : pb_reader_segments(r->reader, t->index, &list);
    x = n < 0 ? n : t->listed ? 0 : list_done(r, t, list, n);
    if (x < 0)
        return pb_fail(err, x, "%s cannot be archived: %s", t->name, strerror(-x));
    uint64_t lost = t->lost;
    count_lost_rows(r, t, list, n, info.recycled);
    report->lost = t->lost;
    report->lost_now = t->lost - lost;
    size_t most = MAX_BYTES / r->info.segment_size > 0 ? MAX_BYTES / r->info.segment_size : 1;
    uint64_t before;
    /* The writer leaves out segments when a batch has files for too many days: they are retried as long as
     * their number decreases. */
    do {
        before = report->segments;
        free(serials);
        serials = NULL;
        int chosen = choose_segments(t, &info, list, n, ended, &serials);
        x = chosen < 0 ? chosen : chosen ? keep_columns(r, t, &info) : 0;
        if (x < 0)
            return pb_fail(err, x, "%s cannot be archived: %s", t->name, strerror(-x));
        for (size_t at = 0, take; x == 0 && at < (size_t)chosen; at += take) {
            size_t left = (size_t)chosen - at;
            take = pb_archive_serials_pack(serials + at, left < most ? left : most, packed);
            x = write_batch(r, t, ended, serials + at, take, report, err);
        }
    } while (x == 0 && report->segments > before);
    if (x == 0 && t->date[0])
        merge_files(r, t, list, n, report);
    return x;
}

static int add_tables(struct pb_archiver *r)
{
    struct pb_table_info info;

    pb_reader_refresh(r->reader);
    for (unsigned i = r->ntables; i < pb_reader_ntables(r->reader); i++) {
        struct pb_archiver_part *more = realloc(r->tables, (i + 1) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        r->tables = more;
        more[i] = (struct pb_archiver_part){.index = i};
        if (pb_reader_table(r->reader, i, &info) == 0)
            snprintf(more[i].name, sizeof(more[i].name), "%s", info.name);
        r->ntables++;
    }
    return 0;
}

int pb_archiver_pending(struct pb_archiver *r, unsigned *ret_percent)
{
    struct pb_file_header h;

    ssize_t n = pread(r->arena_fd, &h, sizeof(h), 0);
    if (n != sizeof(h))
        return n < 0 ? -errno : -ENODATA;
    uint64_t slots = h.bound / r->info.segment_size, opened = h.next_serial - r->next_serial;
    if (opened > INT_MAX)
        opened = INT_MAX;
    *ret_percent = slots ? (unsigned)(opened * 100 / slots) : 0;
    return (int)opened;
}

int pb_archiver_round(struct pb_archiver *r, bool ended,
                      void (*each)(void *arg, const struct pb_archiver_table *table), void *arg,
                      struct pb_err *err)
{
    struct pb_file_header h;
    int x = add_tables(r);

    if (x < 0)
        return pb_fail(err, x, "out of memory");
    if (pread(r->arena_fd, &h, sizeof(h), 0) == sizeof(h))
        r->next_serial = h.next_serial;
    for (unsigned i = 0; i < r->ntables; i++) {
        struct pb_archiver_part *t = &r->tables[i];
        struct pb_archiver_table report = {.name = t->name};
        struct pb_err why = {0};
        if (!pb_name_is_table(t->name))
            continue;
        /* A table that cannot be archived does not stop the others; the first error is returned. */
        int one = archive_table(r, t, ended, &report, &why);
        if (each && (report.files || report.lost_now || report.trouble.text[0]))
            each(arg, &report);
        if (one < 0 && x == 0) {
            x = one;
            *err = why;
        }
    }
    pb_archiver_close_writer(r);
    return x;
}
