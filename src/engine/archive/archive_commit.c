/* archive_commit: renames new files of the archive to their final names, so that a crash at any moment
 * neither loses nor duplicates rows.
 *
 * A batch of one file is one rename. A batch of several files (it spans midnight) is committed once every
 * file of it is named .commit.DATE.NAME; then they are renamed, the first day first. After a crash the next
 * recorder finishes a committed batch and removes any other. */
#include "engine/archive/archive_record.h"

#include "base/cleanup.h"
#include "base/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DECIDED ".commit."

int pb_archive_make_path(int dir, const char *path)
{
    char part[PB_ARCHIVE_PATH];
    int at = fcntl(dir, F_DUPFD_CLOEXEC, 0);

    while (at >= 0 && *path) {
        size_t n = strcspn(path, "/");
        snprintf(part, sizeof(part), "%.*s", (int)n, path);
        if (mkdirat(at, part, 0777) == 0)
            fsync(at);
        else if (errno != EEXIST)
            n = 0;
        int next = n ? openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        int saved = errno;
        close(at);
        errno = saved;
        at = next;
        path += n;
        path += *path == '/';
    }
    return at < 0 ? -errno : at;
}

static int sync_file(int dir, const char *name)
{
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int pb_archive_put_text(int dir, const char *name, const char *text, size_t length)
{
    char part[256];

    snprintf(part, sizeof(part), ".tmp-%s", name);
    _cleanup_close_ int fd = openat(dir, part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, length);
    int r = n < 0 ? -errno : (size_t)n != length ? -ENOSPC : fsync(fd) < 0 ? -errno : 0;
    if (r == 0 && renameat(dir, part, dir, name) < 0)
        r = -errno;
    if (r < 0)
        unlinkat(dir, part, 0);
    else
        fsync(dir);
    return r;
}

int pb_archive_put_mark(int own, const char *run, const char *recorded)
{
    char name[PB_ARCHIVE_RUN + 64];

    snprintf(name, sizeof(name), "%s" PB_ARCHIVE_OF "%.50s", run, recorded);
    _cleanup_close_ int all = openat(own, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int fd =
        all < 0 ? -1 : openat(all, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    return fd < 0 || fsync(all) < 0 ? -errno : 0;
}

static int move_to_day(int partition, const char *from, const char *date, const char *name)
{
    /* Another recorder may prune the empty folder at this moment. */
    for (int tries = 0; tries < 3; tries++) {
        _cleanup_close_ int dir = pb_archive_make_path(partition, date);
        if (dir < 0)
            return dir;
        if (renameat(partition, from, dir, name) == 0)
            return fsync(dir) < 0 ? -errno : 0;
        if (errno != ENOENT)
            return -errno;
    }
    return -ENOENT;
}

int pb_archive_commit(int partition, const char *prefix, const struct pb_archive_name *names,
                      const char (*dates)[PB_ARCHIVE_DATE], unsigned n, struct pb_err *err)
{
    char from[PB_ARCHIVE_PARTS][256], name[256], decided[256];
    int r = 0;

    for (unsigned i = 0; r == 0 && i < n; i++) {
        snprintf(from[i], sizeof(from[i]), "%s.%u", prefix, i + 1);
        r = sync_file(partition, from[i]);
    }
    for (unsigned i = 0; r == 0 && n > 1 && i < n; i++) {
        pb_archive_name_write(&names[i], name, sizeof(name));
        if (snprintf(decided, sizeof(decided), DECIDED "%s.%s", dates[i], name) >= (int)sizeof(decided))
            r = -ENAMETOOLONG;
        else if (renameat(partition, from[i], partition, decided) < 0)
            r = -errno;
        memcpy(from[i], decided, sizeof(decided));
    }
    if (r == 0 && fsync(partition) < 0)
        r = -errno;
    for (unsigned i = 0; r == 0 && i < n; i++) {
        pb_archive_name_write(&names[i], name, sizeof(name));
        r = move_to_day(partition, from[i], dates[i], name);
    }
    if (r == 0 && fsync(partition) < 0)
        r = -errno;
    return r < 0 ? pb_fail(err, r, "a file of the archive cannot be put in its place: %s", strerror(-r)) : 0;
}

/* --- after a crash --- */

struct found {
    char date[PB_ARCHIVE_DATE], name[256];
    struct pb_archive_name parsed;
};

struct recovery {
    const char *run;
    struct found *at;
    size_t n;
};

/* .commit.DATE.NAME of this run. */
static bool read_decided(const char *text, const char *run, struct found *ret)
{
    const char *date = strncmp(text, DECIDED, strlen(DECIDED)) == 0 ? text + strlen(DECIDED) : NULL;
    const char *dot = date ? strchr(date, '.') : NULL;

    if (!dot || (size_t)(dot - date) >= sizeof(ret->date) || strncmp(date, "date=", 5) != 0 ||
        pb_archive_name_read(dot + 1, &ret->parsed) < 0 || strcmp(ret->parsed.run, run) != 0)
        return false;
    snprintf(ret->date, sizeof(ret->date), "%.*s", (int)(dot - date), date);
    snprintf(ret->name, sizeof(ret->name), "%s", text);
    return true;
}

static int find_leftovers(int partition, struct recovery *ret)
{
    int fd = openat(partition, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char tmp[32];

    if (!dir)
        return -errno;
    snprintf(tmp, sizeof(tmp), ".tmp-%s-", ret->run);
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        struct found one;
        if (strncmp(e->d_name, tmp, strlen(tmp)) == 0)
            unlinkat(partition, e->d_name, 0);
        if (!read_decided(e->d_name, ret->run, &one))
            continue;
        struct found *more = realloc(ret->at, (ret->n + 1) * sizeof(*more));
        if (!more) {
            r = -ENOMEM;
            break;
        }
        ret->at = more;
        ret->at[ret->n++] = one;
    }
    closedir(dir);
    return r;
}

static int by_batch_and_part(const void *a, const void *b)
{
    const struct pb_archive_name *x = &((const struct found *)a)->parsed,
                                 *y = &((const struct found *)b)->parsed;
    int order = strcmp(x->serials, y->serials);
    return order ? order : x->part < y->part ? -1 : 1;
}

int pb_archive_recover(int partition, const char *run)
{
    struct recovery all = {.run = run};
    char name[256];

    int r = find_leftovers(partition, &all);
    if (all.n)
        qsort(all.at, all.n, sizeof(*all.at), by_batch_and_part);
    for (size_t i = 0, end; r == 0 && i < all.n; i = end) {
        for (end = i + 1; end < all.n && strcmp(all.at[end].parsed.serials, all.at[i].parsed.serials) == 0;)
            end++;
        /* Missing first parts have been renamed already; any other missing part means that the batch was not
         * committed. */
        bool decided = all.at[end - 1].parsed.part == all.at[i].parsed.parts &&
                       end - i == all.at[i].parsed.parts - all.at[i].parsed.part + 1;
        for (size_t k = i; r == 0 && k < end; k++) {
            pb_archive_name_write(&all.at[k].parsed, name, sizeof(name));
            if (decided)
                r = move_to_day(partition, all.at[k].name, all.at[k].date, name);
            else if (unlinkat(partition, all.at[k].name, 0) < 0)
                r = -errno;
        }
    }
    free(all.at);
    return r;
}
