/* archive_record: see archive_record.h. */
#include "engine/archive/archive_record.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/retry.h"
#include "engine/archive/archive_list.h"
#include "engine/caller/broker_slot.h"
#include "engine/shared/wire.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A late cell is filled soon after its row: where a table has such cells its segments wait a little. */
static const int64_t LATE_NS = 2 * INT64_C(1000000000);
static const uint64_t MAX_BYTES = 64 << 20; /* of a batch's segments */

#define LOCK_NS PB_NS_PER_S /* for the writer of a recorder that was killed to let go of the lock */

/* A segment that is archived and still in the arena. */
struct done {
    uint64_t serial;
    uint32_t rows;
    bool counted; /* rows is known */
};

struct table {
    char name[64];
    unsigned index;
    bool listed; /* what its files tell was taken in */
    char *columns;
    size_t columns_size;
    struct done *done; /* by serial */
    size_t ndone;
    uint64_t total, lost;
};

struct pb_recorder {
    char folder[PATH_MAX], place[PATH_MAX];
    char compression[32];
    struct pb_archive_run run;
    struct pb_reader *reader;
    struct pb_reader_info info;
    int arena_fd, folder_fd, own_fd, lock_fd;
    int writer; /* socket; -1: not started */
    unsigned counter;
    uint64_t next_serial; /* of the arena, when the last round began */
    struct table *tables;
    unsigned ntables;
    struct pb_wire in, out;
};

/* --- opening --- */

static int make_folder(const char *path, struct pb_err *err)
{
    char part[PATH_MAX];

    snprintf(part, sizeof(part), "%s", path);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char was = *p;
        *p = '\0';
        if (mkdir(part, was ? 0777 : 0700) < 0 && errno != EEXIST)
            return pb_fail(err, -errno, "the archive %s cannot be made: %s", path, strerror(errno));
        *p = was;
        if (!was)
            return 0;
    }
}

static int take_lock(struct pb_recorder *r, pid_t pid, struct pb_err *err)
{
    char who[32] = "";

    r->lock_fd = openat(r->own_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (r->lock_fd < 0)
        return pb_fail(err, -errno, "the archive %s cannot be written: %s", r->folder, strerror(errno));
    struct pb_retry again = pb_retry_until(pb_now_ns() + LOCK_NS, 20 * PB_NS_PER_MS, 20 * PB_NS_PER_MS);
    do {
        if (flock(r->lock_fd, LOCK_EX | LOCK_NB) == 0) {
            pb_recorder_sign(r);
            return 0;
        }
        ssize_t n = pread(r->lock_fd, who, sizeof(who) - 1, 0);
        who[n > 0 ? n : 0] = '\0';
        who[strspn(who, "0123456789")] = '\0';
        /* One that was killed while it started its writer: the child lets go of the lock at once. */
        if (!who[0] || kill((pid_t)atoi(who), 0) == 0 || errno != ESRCH)
            break;
    } while (pb_retry_wait(&again));
    return pb_fail(err, -EBUSY, "process %d is being archived to %s already (by process %s)", (int)pid,
                   r->folder, who[0] ? who : "of another machine");
}

void pb_recorder_sign(struct pb_recorder *r)
{
    char who[32];

    int n = snprintf(who, sizeof(who), "%d\n", (int)getpid());
    /* For people to read: the lock itself is the kernel's. */
    if (ftruncate(r->lock_fd, 0) < 0 || pwrite(r->lock_fd, who, (size_t)n, 0) < 0)
        return;
}

static int open_places(struct pb_recorder *r, const struct pb_recorder_options *o, struct pb_err *err)
{
    char own[64];

    int x = make_folder(r->folder, err);
    if (x < 0)
        return x;
    char *whole = realpath(r->folder, NULL);
    if (whole)
        snprintf(r->folder, sizeof(r->folder), "%s", whole);
    free(whole);
    r->folder_fd = open(r->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(own, sizeof(own), PB_ARCHIVE_OWN "/%s", r->run.id);
    snprintf(r->place, sizeof(r->place), "%.*s/%s", (int)(sizeof(r->place) - sizeof(own) - 1), r->folder,
             own);
    r->own_fd = r->folder_fd < 0 ? -errno : pb_archive_make_path(r->folder_fd, own);
    if (r->own_fd < 0)
        return pb_fail(err, r->own_fd, "the archive %s cannot be written: %s", r->folder,
                       strerror(-r->own_fd));
    x = take_lock(r, o->pid, err);
    if (x == 0 && faccessat(r->own_fd, "about", F_OK, 0) < 0) {
        x = o->recorded ? pb_archive_put_mark(r->own_fd, r->run.id, o->recorded) : 0;
        if (x == 0)
            x = pb_archive_put_text(r->own_fd, "about", o->about, strlen(o->about));
        if (x < 0)
            pb_fail(err, x, "the archive %s cannot be written: %s", r->folder, strerror(-x));
    }
    if (x < 0)
        return x;
    x = pb_archive_run_read(r->folder, r->run.id, &r->run);
    return x < 0 ? pb_fail(err, x, "the description of the run in %s cannot be read: %s", r->folder,
                           strerror(-x))
                 : 0;
}

int pb_recorder_open(const struct pb_recorder_options *o, struct pb_recorder **ret, struct pb_err *err)
{
    char why[PB_WHY_SIZE];
    struct pb_recorder *r = calloc(1, sizeof(*r));

    if (!r)
        return pb_fail(err, -ENOMEM, "out of memory");
    r->arena_fd = o->arena_fd;
    r->folder_fd = r->own_fd = r->lock_fd = r->writer = -1;
    snprintf(r->folder, sizeof(r->folder), "%s", o->folder);
    snprintf(r->compression, sizeof(r->compression), "%s",
             strcmp(o->compression, "none") == 0 ? "uncompressed" : o->compression);
    int x = pb_reader_open(o->arena_fd, &r->reader, why);
    if (x < 0)
        pb_fail(err, x, "the tables of process %d cannot be read: %s", (int)o->pid, why);
    if (x == 0 && (x = pb_archive_run_id(o->arena_fd, r->run.id)) < 0)
        pb_fail(err, x, "the tables of process %d cannot be read: %s", (int)o->pid, strerror(-x));
    if (x == 0)
        x = open_places(r, o, err);
    if (x < 0) {
        pb_recorder_close(r);
        return x;
    }
    pb_reader_info(r->reader, &r->info);
    *ret = r;
    return 0;
}

static void close_writer(struct pb_recorder *r)
{
    if (r->writer >= 0)
        close(r->writer);
    r->writer = -1;
}

void pb_recorder_close(struct pb_recorder *r)
{
    const int fds[] = {r->folder_fd, r->own_fd, r->lock_fd};

    close_writer(r);
    for (unsigned i = 0; i < r->ntables; i++) {
        free(r->tables[i].columns);
        free(r->tables[i].done);
    }
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pb_reader_close(r->reader);
    pb_wire_done(&r->in);
    pb_wire_done(&r->out);
    free(r->tables);
    free(r);
}

const char *pb_recorder_place(const struct pb_recorder *r)
{
    return r->place;
}

/* --- what is archived --- */

static int by_serial(const void *a, const void *b)
{
    uint64_t x = ((const struct done *)a)->serial, y = ((const struct done *)b)->serial;
    return x < y ? -1 : x > y;
}

static struct done *find_done(const struct table *t, uint64_t serial)
{
    const struct done key = {.serial = serial};
    return t->ndone ? bsearch(&key, t->done, t->ndone, sizeof(key), by_serial) : NULL;
}

static int add_done(struct table *t, const struct done *more, size_t n)
{
    struct done *all = realloc(t->done, (t->ndone + n) * sizeof(*all));

    if (!all)
        return -ENOMEM;
    t->done = all;
    memcpy(all + t->ndone, more, n * sizeof(*more));
    t->ndone += n;
    return 0;
}

static void sort_done(struct table *t)
{
    size_t kept = 0;

    if (t->ndone)
        qsort(t->done, t->ndone, sizeof(*t->done), by_serial);
    for (size_t i = 0; i < t->ndone; i++)
        if (kept == 0 || t->done[kept - 1].serial != t->done[i].serial)
            t->done[kept++] = t->done[i];
    t->ndone = kept;
}

static int open_partition(const struct pb_recorder *r, const struct table *t)
{
    char path[PB_ARCHIVE_PATH];

    if (snprintf(path, sizeof(path), "%s/%s", t->name, r->run.partition) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    return pb_archive_make_path(r->folder_fd, path);
}

/* Reads from the names of a table's files which segments earlier recorders of this run have archived. */
static int list_done(struct pb_recorder *r, struct table *t)
{
    struct pb_archive_files files;
    uint64_t serials[PB_ARCHIVE_BATCH];
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
        x = pb_archive_files_read(r->folder, &r->run, t->name, &files);
    if (x < 0)
        return x;
    t->ndone = 0;
    for (size_t i = 0; x == 0 && i < files.n; i++) {
        const struct pb_archive_name *name = &files.at[i].name;
        struct done more[PB_ARCHIVE_BATCH] = {{0}};
        int n = pb_archive_serials_unpack(name->serials, serials);
        for (int k = 0; k < n; k++)
            more[k].serial = serials[k];
        x = add_done(t, more, n > 0 ? (size_t)n : 0);
        t->total = name->total > t->total ? name->total : t->total;
    }
    sort_done(t);
    pb_archive_files_done(&files);
    t->listed = x == 0;
    return x;
}

/* Counts the rows of archived segments that are in the arena still, and forgets those that are not: what
 * was archived and what was overwritten together tell what was lost. */
static void account(struct pb_recorder *r, struct table *t, const struct pb_segment_info *list, int n,
                    uint64_t recycled)
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

static int keep_columns(struct pb_recorder *r, struct table *t, const struct pb_table_info *info)
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

/* The writer may open nothing: it is sent a new file for each day that it asks for. */
static int send_files(struct pb_recorder *r, int partition, const char *prefix, struct pb_err *err)
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

static int ask_writer(struct pb_recorder *r, const struct table *t, bool ended, int partition,
                      const char *prefix, const uint64_t *serials, size_t n, struct pb_err *err)
{
    uint32_t length;

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
        close_writer(r);
        return x;
    }
    uint32_t number = x == 0 ? pb_wire_u32(&r->in) : 0;
    const char *text = x == 0 ? pb_wire_text(&r->in, &length) : NULL;
    close_writer(r);
    if (x == 0 && text && number > 0 && number < 4096)
        return pb_fail(err, -(int)number, "%s was not archived: %.*s", t->name, (int)length, text);
    return pb_fail(err, x < 0 ? x : -EBADMSG,
                   "%s was not archived: the process that writes Parquet has ended", t->name);
}

/* A batch as the writer tells of it. */
struct written {
    struct done done[PB_ARCHIVE_BATCH];
    uint64_t serials[PB_ARCHIVE_BATCH];
    unsigned n, nfiles;
    uint64_t rows;
    struct pb_archive_name names[PB_ARCHIVE_PARTS];
    char dates[PB_ARCHIVE_PARTS][16];
};

static int read_answer(struct pb_recorder *r, const struct table *t, struct written *w)
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
        time_t day = (time_t)((int64_t)pb_wire_u64(&r->in) * 86400);
        struct tm tm = {0};
        name.part = i + 1;
        name.first = (int64_t)pb_wire_u64(&r->in);
        name.last = (int64_t)pb_wire_u64(&r->in);
        w->names[i] = name;
        gmtime_r(&day, &tm);
        snprintf(w->dates[i], sizeof(w->dates[i]), "date=%04d-%02d-%02d", (tm.tm_year + 1900) % 10000,
                 (tm.tm_mon + 1) % 100, tm.tm_mday % 100);
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

static int write_batch(struct pb_recorder *r, struct table *t, bool ended, const uint64_t *serials, size_t n,
                       struct pb_recorder_table *report, struct pb_err *err)
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
        pb_fail(err, x, "%s was not archived: the process that writes Parquet talks nonsense", t->name);
    if (x == 0 && w.nfiles)
        x = pb_archive_commit(partition, prefix, w.names, (const char(*)[16])w.dates, w.nfiles, err);
    remove_parts(partition, prefix);
    if (x < 0) {
        /* Part of it may have its name already: what is archived is what the names say. */
        t->listed = false;
        return x;
    }
    t->total += w.rows;
    report->files += w.nfiles;
    report->segments += w.n;
    report->rows += w.rows;
    x = w.n ? add_done(t, w.done, w.n) : 0;
    sort_done(t);
    return x < 0 ? pb_fail(err, x, "out of memory") : 0;
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

/* The serials of closed segments that are not archived, ascending, to an array of malloc. */
static int choose(const struct table *t, const struct pb_table_info *info, const struct pb_segment_info *list,
                  int n, bool ended, uint64_t **ret)
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

static int archive_table(struct pb_recorder *r, struct table *t, bool ended, struct pb_recorder_table *report,
                         struct pb_err *err)
{
    _cleanup_free_ struct pb_segment_info *list = NULL;
    _cleanup_free_ uint64_t *serials = NULL;
    struct pb_table_info info;
    char packed[PB_ARCHIVE_SERIALS + 1];

    int x = t->listed ? 0 : list_done(r, t);
    if (x == 0)
        x = pb_reader_table(r->reader, t->index, &info);
    int n = x < 0 ? x : pb_reader_segments(r->reader, t->index, &list);
    if (n < 0)
        return pb_fail(err, n, "%s cannot be archived: %s", t->name, strerror(-n));
    uint64_t lost = t->lost;
    account(r, t, list, n, info.recycled);
    report->lost = t->lost;
    report->lost_now = t->lost - lost;
    size_t most = MAX_BYTES / r->info.segment_size > 0 ? MAX_BYTES / r->info.segment_size : 1;
    uint64_t before;
    /* The writer leaves segments out of a batch that has files for many days already: they are tried again
     * as long as there are fewer of them. */
    do {
        before = report->segments;
        free(serials);
        serials = NULL;
        int chosen = choose(t, &info, list, n, ended, &serials);
        x = chosen < 0 ? chosen : chosen ? keep_columns(r, t, &info) : 0;
        if (x < 0)
            return pb_fail(err, x, "%s cannot be archived: %s", t->name, strerror(-x));
        for (size_t at = 0, take; x == 0 && at < (size_t)chosen; at += take) {
            size_t left = (size_t)chosen - at;
            take = pb_archive_serials_pack(serials + at, left < most ? left : most, packed);
            x = write_batch(r, t, ended, serials + at, take, report, err);
        }
    } while (x == 0 && report->segments > before);
    return x;
}

static int add_tables(struct pb_recorder *r)
{
    struct pb_table_info info;

    pb_reader_refresh(r->reader);
    for (unsigned i = r->ntables; i < pb_reader_ntables(r->reader); i++) {
        struct table *more = realloc(r->tables, (i + 1) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        r->tables = more;
        more[i] = (struct table){.index = i};
        if (pb_reader_table(r->reader, i, &info) == 0)
            snprintf(more[i].name, sizeof(more[i].name), "%s", info.name);
        r->ntables++;
    }
    return 0;
}

int pb_recorder_pending(struct pb_recorder *r, unsigned *ret_percent)
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

int pb_recorder_round(struct pb_recorder *r, bool ended,
                      void (*each)(void *arg, const struct pb_recorder_table *table), void *arg,
                      struct pb_err *err)
{
    struct pb_file_header h;
    int x = add_tables(r);

    if (x < 0)
        return pb_fail(err, x, "out of memory");
    if (pread(r->arena_fd, &h, sizeof(h), 0) == sizeof(h))
        r->next_serial = h.next_serial;
    for (unsigned i = 0; i < r->ntables; i++) {
        struct table *t = &r->tables[i];
        struct pb_recorder_table report = {.name = t->name};
        struct pb_err why = {0};
        if (!pb_name_is_table(t->name))
            continue;
        /* One table that cannot be archived holds up no other; the first failure is told. */
        int one = archive_table(r, t, ended, &report, &why);
        if (each && (report.files || report.lost_now))
            each(arg, &report);
        if (one < 0 && x == 0) {
            x = one;
            *err = why;
        }
    }
    close_writer(r);
    return x;
}
