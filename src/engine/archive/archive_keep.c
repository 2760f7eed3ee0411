/* archive_keep: see archive_keep.h. */
#include "engine/archive/archive_keep.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/retry.h"
#include "engine/shared/archive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH = 5 };

#define READERS_NS (2 * PB_NS_PER_S) /* for queries to be through with the files */

struct file {
    char *path; /* below the folder */
    char run[PB_ARCHIVE_RUN];
    int64_t last; /* us */
    uint64_t bytes;
    bool gone;
};

struct walk {
    int top;
    const struct pb_archive_limits *limits;
    struct file *at;
    size_t n;
};

/* TABLE/job=/node=/rank=/date=/ */
static bool belongs(const char *name, unsigned depth)
{
    static const char *const heads[DEPTH] = {"", "job=", "node=", "rank=", "date="};
    return name[0] != '.' && strcmp(name, PB_ARCHIVE_OWN) != 0 &&
           strncmp(name, heads[depth], strlen(heads[depth])) == 0;
}

static bool is_concerned(const struct pb_archive_limits *limits, const char *run)
{
    for (size_t i = 0; limits->runs && i < limits->nruns; i++)
        if (strcmp(limits->runs[i], run) == 0)
            return true;
    return !limits->runs;
}

static int add_file(struct walk *w, int dir, const char *path, const char *name)
{
    struct pb_archive_name told;
    struct stat st;

    if (pb_archive_name_read(name, &told) < 0 || !is_concerned(w->limits, told.run) ||
        fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (w->n % 256 == 0) {
        struct file *more = realloc(w->at, (w->n + 256) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        w->at = more;
    }
    struct file *f = &w->at[w->n];
    *f = (struct file){.last = told.last, .bytes = (uint64_t)st.st_size};
    memcpy(f->run, told.run, sizeof(f->run));
    if (asprintf(&f->path, "%s/%s", path, name) < 0)
        return -ENOMEM;
    w->n++;
    return 0;
}

static int visit(struct walk *w, int at, const char *path, unsigned depth)
{
    int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char below[PB_ARCHIVE_PATH];

    for (struct dirent *e; dir && r == 0 && (e = readdir(dir));) {
        if (depth == DEPTH) {
            r = add_file(w, at, path, e->d_name);
            continue;
        }
        if (!belongs(e->d_name, depth) ||
            snprintf(below, sizeof(below), "%s%s%s", path, depth ? "/" : "", e->d_name) >= (int)sizeof(below))
            continue;
        _cleanup_close_ int next = openat(at, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next >= 0)
            r = visit(w, next, below, depth + 1);
    }
    if (dir)
        closedir(dir);
    return r;
}

static int oldest_first(const void *a, const void *b)
{
    const struct file *x = a, *y = b;
    return x->last != y->last ? (x->last < y->last ? -1 : 1) : strcmp(x->path, y->path);
}

/* Removes the folders above a file as far as they are empty. */
static void prune(int top, char *path)
{
    for (char *slash; (slash = strrchr(path, '/'));) {
        *slash = '\0';
        if (unlinkat(top, path, AT_REMOVEDIR) < 0)
            break;
    }
}

static int remove_file(struct walk *w, struct file *f, struct pb_archive_kept *kept)
{
    if (unlinkat(w->top, f->path, 0) < 0 && errno != ENOENT)
        return -errno;
    f->gone = true;
    kept->removed++;
    kept->removed_bytes += f->bytes;
    return 0;
}

static int remove_beyond(struct walk *w, struct pb_archive_kept *kept)
{
    const struct pb_archive_limits *limits = w->limits;
    struct timespec now;
    uint64_t total = 0;
    int r = 0;

    clock_gettime(CLOCK_REALTIME, &now);
    double oldest = (double)now.tv_sec - limits->days * 86400;
    for (size_t i = 0; i < w->n; i++)
        total += w->at[i].bytes;
    for (size_t i = 0; r == 0 && i < w->n; i++) {
        struct file *f = &w->at[i];
        if (!(limits->days > 0 && (double)f->last / 1e6 < oldest) &&
            !(limits->bytes && total > limits->bytes))
            continue;
        r = remove_file(w, f, kept);
        if (r == 0)
            total -= f->bytes;
    }
    kept->files = w->n - kept->removed;
    kept->bytes = total;
    return r;
}

/* Those of one run beside each other, what is left of it first. */
static int by_run(const void *a, const void *b)
{
    const struct file *x = a, *y = b;
    int order = strcmp(x->run, y->run);
    return order ? order : (int)x->gone - (int)y->gone;
}

/* RUN.of-PID-START of a recording. */
static void forget_mark(int own, const char *run)
{
    DIR *dir = fdopendir(openat(own, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    size_t n = strlen(run);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, run, n) == 0 &&
            strncmp(e->d_name + n, PB_ARCHIVE_OF, strlen(PB_ARCHIVE_OF)) == 0)
            unlinkat(own, e->d_name, 0);
    if (dir)
        closedir(dir);
}

/* Our record of a run of which nothing is left and that nobody archives. */
static void forget_run(int own, const char *run)
{
    _cleanup_close_ int fd = openat(own, run, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    _cleanup_close_ int lock = fd < 0 ? -1 : openat(fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0)
        return;
    DIR *dir = fdopendir(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    for (struct dirent *e; dir && (e = readdir(dir));) {
        const char *end = strrchr(e->d_name, '.');
        if (strcmp(e->d_name, "about") == 0 || strcmp(e->d_name, "log") == 0 ||
            (end && strcmp(end, ".columns") == 0))
            unlinkat(fd, e->d_name, 0);
    }
    if (dir)
        closedir(dir);
    unlinkat(fd, "lock", 0);
    unlinkat(own, run, AT_REMOVEDIR);
    forget_mark(own, run);
}

/* Runs that lost all of their files. */
static void forget_runs(struct walk *w)
{
    _cleanup_close_ int own = openat(w->top, PB_ARCHIVE_OWN, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    qsort(w->at, w->n, sizeof(*w->at), by_run);
    for (size_t i = 0; own >= 0 && i < w->n; i++)
        if ((i == 0 || strcmp(w->at[i].run, w->at[i - 1].run) != 0) && w->at[i].gone)
            forget_run(own, w->at[i].run);
}

static int wait_for_readers(int top)
{
    struct pb_retry again = pb_retry_until(pb_now_ns() + READERS_NS, 50 * PB_NS_PER_MS, 50 * PB_NS_PER_MS);

    while (flock(top, LOCK_EX | LOCK_NB) < 0)
        if (!pb_retry_wait(&again))
            return -EBUSY;
    return 0;
}

int pb_archive_keep(const char *folder, const struct pb_archive_limits *limits, struct pb_archive_kept *ret,
                    struct pb_err *err)
{
    struct walk w = {.top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .limits = limits};

    *ret = (struct pb_archive_kept){0};
    _cleanup_close_ int top = w.top;
    if (top < 0)
        return pb_fail(err, -errno, "the archive %s cannot be read: %s", folder, strerror(errno));
    int r = visit(&w, top, "", 0);
    if (r == 0 && w.n) {
        qsort(w.at, w.n, sizeof(*w.at), oldest_first);
        r = wait_for_readers(top);
    }
    if (r == 0)
        r = remove_beyond(&w, ret);
    if (r < 0)
        pb_fail(err, r, "old files of %s were not removed: %s", folder,
                r == -EBUSY ? "queries read it without a pause (the next round tries again)" : strerror(-r));
    if (ret->removed)
        forget_runs(&w);
    for (size_t i = 0; i < w.n; i++) {
        if (w.at[i].gone)
            prune(top, w.at[i].path);
        free(w.at[i].path);
    }
    free(w.at);
    return r;
}
