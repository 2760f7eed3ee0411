/* archive_merge: see archive_merge.h. */
#include "engine/archive/archive_merge.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "engine/archive/archive_count.h"
#include "engine/archive/archive_keep.h"
#include "engine/archive/archive_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FEWEST = 16 };

/* Files below the same size count as similar. Files above the last size are never rewritten. */
static const uint64_t sizes[] = {1 << 20, 8 << 20, 64 << 20};
enum { CLASSES = sizeof(sizes) / sizeof(sizes[0]) };

static bool can_follow(const struct pb_archive_file *before, const struct pb_archive_file *f)
{
    return f->name.parts == 1 && f->name.ncolumns == before->name.ncolumns &&
           f->name.first_serial > before->name.last_serial;
}

/* How many neighbours from `first` on are below a size. Files that are parts of a batch (over midnight) or
 * have other columns are not merged, and separate the others. */
static size_t count_alike(const struct pb_archive_files *files, const uint64_t *bytes, size_t first,
                          uint64_t size, uint64_t *ret_sum, uint64_t *ret_largest)
{
    size_t n = 0;

    *ret_sum = *ret_largest = 0;
    for (size_t i = first; i < files->n && n < PB_ARCHIVE_MERGE_MOST && *ret_sum < 2 * sizes[CLASSES - 1];
         i++, n++) {
        const struct pb_archive_file *f = &files->at[i];
        if (bytes[i] >= size || f->name.parts != 1 || (n && !can_follow(&files->at[i - 1], f)))
            break;
        *ret_sum += bytes[i];
        *ret_largest = bytes[i] > *ret_largest ? bytes[i] : *ret_largest;
    }
    return n;
}

size_t pb_merge_choose(const struct pb_archive_files *files, const uint64_t *bytes,
                       struct pb_archive_merge *ret)
{
    for (unsigned class = 0; class < CLASSES; class ++)
        for (size_t first = 0; first < files->n; first++) {
            uint64_t sum, largest;
            size_t n = count_alike(files, bytes, first, sizes[class], &sum, &largest);
            /* A file larger than all the others together would be rewritten often for little gain. */
            if (n < 2 || largest > sum - largest ||
                (n < FEWEST && !(class == CLASSES - 1 && sum >= sizes[class])))
                continue;
            const struct pb_archive_name *head = &files->at[first].name;
            *ret = (struct pb_archive_merge){.first = first, .n = n, .name = *head};
            for (size_t i = first; i < first + n; i++) {
                const struct pb_archive_name *name = &files->at[i].name;
                ret->name.first = name->first < ret->name.first ? name->first : ret->name.first;
                ret->name.last = name->last > ret->name.last ? name->last : ret->name.last;
                ret->name.total = name->total > ret->name.total ? name->total : ret->name.total;
                ret->name.last_serial = name->last_serial;
            }
            pb_archive_serials_pack_all(head->first_serial, ret->name.last_serial, ret->name.serials);
            return n;
        }
    return 0;
}

/* The files to merge, open, after the file to write. */
struct sources {
    int fds[PB_ARCHIVE_MERGE_MOST + 1];
    size_t n;
    int64_t rows;
};

static void close_sources(struct sources *s)
{
    for (size_t i = 0; i < s->n; i++)
        close(s->fds[i]);
}

static int open_sources(int day, const struct pb_archive_files *files, const struct pb_archive_merge *m,
                        struct sources *s)
{
    char name[256];
    uint64_t bytes;

    for (size_t i = m->first; i < m->first + m->n; i++) {
        pb_archive_name_write(&files->at[i].name, name, sizeof(name));
        int fd = openat(day, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        s->fds[s->n++] = fd;
        int64_t rows = pb_parquet_file_rows(fd, &bytes);
        if (rows < 0)
            return (int)rows;
        s->rows += rows;
    }
    return 0;
}

/* Writes PREFIX.1 and syncs it to disk. */
static int write_merged(const struct pb_merge_day *d, int day, const struct pb_archive_files *files,
                        const struct pb_archive_merge *m, struct pb_err *err)
{
    struct sources s = {0};
    char name[80];
    uint64_t bytes;

    snprintf(name, sizeof(name), "%s.1", d->prefix);
    int fd = openat(d->partition, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return pb_fail(err, -errno, "%s", strerror(errno));
    s.fds[s.n++] = fd;
    int r = open_sources(day, files, m, &s);
    if (r < 0)
        pb_fail(err, r, "%s", r == -EBADMSG ? "a file is damaged" : strerror(-r));
    if (r == 0)
        r = d->write(d->arg, s.fds, s.n, err);
    /* The writer has read files that anyone may have put there: the number of rows is checked here. */
    if (r == 0 && pb_parquet_file_rows(fd, &bytes) != s.rows)
        r = pb_fail(err, -EBADMSG, "the merged file does not have as many rows as its sources");
    if (r == 0 && fsync(fd) < 0)
        r = pb_fail(err, -errno, "%s", strerror(errno));
    close_sources(&s);
    return r;
}

/* After this rename the merged file is valid, and its sources are not. */
static int switch_over(const struct pb_merge_day *d, int day, const struct pb_archive_files *files,
                       const struct pb_archive_merge *m, struct pb_err *err)
{
    char dates[1][PB_ARCHIVE_DATE], name[256];

    snprintf(dates[0], sizeof(dates[0]), "%s", d->date);
    /* A separate descriptor, since the lock goes with it. */
    _cleanup_close_ int lock = openat(d->top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = lock < 0 ? -errno : pb_archive_wait_for_readers(lock);
    /* Another process may have removed old files meanwhile: their rows must not come back. */
    for (size_t i = m->first; r == 0 && i < m->first + m->n; i++) {
        pb_archive_name_write(&files->at[i].name, name, sizeof(name));
        r = faccessat(day, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    }
    if (r < 0)
        return pb_fail(err, r, "%s", r == -EBUSY ? "queries read the archive without a pause" : strerror(-r));
    r = pb_archive_commit(d->partition, d->prefix, &m->name, (const char(*)[PB_ARCHIVE_DATE])dates, 1, err);
    for (size_t i = m->first; r == 0 && i < m->first + m->n; i++) {
        pb_archive_name_write(&files->at[i].name, name, sizeof(name));
        unlinkat(day, name, 0);
    }
    if (r == 0)
        fsync(day);
    return r;
}

int pb_merge_day(const struct pb_merge_day *d, struct pb_err *err)
{
    _cleanup_(pb_archive_files_done) struct pb_archive_files files = {0};
    _cleanup_free_ uint64_t *bytes = NULL;
    struct pb_archive_merge m;
    struct stat st;
    char name[256];

    _cleanup_close_ int day = pb_archive_open_folder_at(d->partition, d->date);
    int r = day < 0 ? day : pb_archive_day_read(day, d->date, d->run, &files);
    bytes = r == 0 ? calloc(files.n + 1, sizeof(*bytes)) : NULL;
    if (!bytes)
        return pb_fail(err, r < 0 ? r : -ENOMEM, "%s", strerror(r < 0 ? -r : ENOMEM));
    for (size_t i = 0; i < files.n; i++) {
        pb_archive_name_write(&files.at[i].name, name, sizeof(name));
        bytes[i] = fstatat(day, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_size : UINT64_MAX;
    }
    if (pb_merge_choose(&files, bytes, &m) == 0 ||
        !d->is_whole(d->arg, m.name.first_serial, m.name.last_serial))
        return 0;
    r = write_merged(d, day, &files, &m, err);
    if (r == 0)
        r = switch_over(d, day, &files, &m, err);
    snprintf(name, sizeof(name), "%s.1", d->prefix);
    unlinkat(d->partition, name, 0);
    return r < 0 ? r : (int)m.n;
}

void pb_merge_clean(int top, const struct pb_archive_files *left)
{
    _cleanup_close_ int lock = left->n ? openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (lock < 0 || pb_archive_wait_for_readers(lock) < 0)
        return;
    for (size_t i = 0; i < left->n; i++)
        unlinkat(top, left->at[i].path, 0);
}
