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

#define READERS_NS (2 * PB_NS_PER_S) /* time for running queries to finish with the files */

struct archive_file {
    char *path; /* below the folder */
    char run[PB_ARCHIVE_RUN];
    int64_t last; /* us */
    uint64_t bytes;
    bool gone;
};

struct files {
    struct archive_file *at;
    size_t n;
};

/* A folder of one day as it was when it was last read. Files never change, so it is read again only when
 * names were added or removed. */
struct day_folder {
    char *path;
    dev_t dev;
    ino_t ino;
    struct timespec changed, looked;
    uint64_t files, bytes;        /* of the runs that the limits apply to */
    int64_t oldest;               /* the smallest `last` of them */
    char (*runs)[PB_ARCHIVE_RUN]; /* runs with files here, each once */
    size_t nruns;
    bool there, opened; /* in this round: it exists; its files are in the list of candidates */
};

struct pb_archive_seen {
    struct day_folder *at; /* sorted by path up to nsorted, then folders that are new in this round */
    size_t n, nsorted, nruns;
};

struct archive_walk {
    int top;
    const struct pb_archive_limits *limits;
    struct pb_archive_seen *seen;
    struct files files; /* of the folders that files may be removed from */
};

/* Whether a name fits the level: TABLE/job=/node=/rank=/date=/ */
static bool fits_level(const char *name, unsigned depth)
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

/* --- listing --- */

static int add_file(struct archive_walk *w, int dir, const char *path, const char *name, struct files *to)
{
    struct pb_archive_name parsed;
    struct stat st;

    if (pb_archive_name_read(name, &parsed) < 0 || !is_concerned(w->limits, parsed.run) ||
        fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (to->n % 256 == 0) {
        struct archive_file *more = realloc(to->at, (to->n + 256) * sizeof(*more));
        if (!more)
            return -ENOMEM;
        to->at = more;
    }
    struct archive_file *f = &to->at[to->n];
    *f = (struct archive_file){.last = parsed.last, .bytes = (uint64_t)st.st_size};
    memcpy(f->run, parsed.run, sizeof(f->run));
    if (asprintf(&f->path, "%s/%s", path, name) < 0)
        return -ENOMEM;
    to->n++;
    return 0;
}

static int read_files(struct archive_walk *w, int at, const char *path, struct files *to)
{
    int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    for (struct dirent *e; dir && r == 0 && (e = readdir(dir));)
        r = add_file(w, at, path, e->d_name, to);
    if (dir)
        closedir(dir);
    return r;
}

static void release_files(struct files *files, size_t from)
{
    for (size_t i = from; i < files->n; i++)
        free(files->at[i].path);
    files->n = from;
}

static int by_run_name(const void *a, const void *b)
{
    return strcmp(((const struct archive_file *)a)->run, ((const struct archive_file *)b)->run);
}

/* Sums up a folder; valid as long as the folder does not change. */
static int sum_up(struct day_folder *d, struct files *files)
{
    d->files = files->n;
    d->bytes = 0;
    d->oldest = INT64_MAX;
    d->nruns = 0;
    if (files->n)
        qsort(files->at, files->n, sizeof(*files->at), by_run_name);
    for (size_t i = 0; i < files->n; i++) {
        const struct archive_file *f = &files->at[i];
        d->bytes += f->bytes;
        d->oldest = f->last < d->oldest ? f->last : d->oldest;
        if (d->nruns && strcmp(d->runs[d->nruns - 1], f->run) == 0)
            continue;
        void *more = realloc(d->runs, (d->nruns + 1) * sizeof(*d->runs));
        if (!more)
            return -ENOMEM;
        d->runs = more;
        memcpy(d->runs[d->nruns++], f->run, sizeof(f->run));
    }
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct day_folder *)a)->path, ((const struct day_folder *)b)->path);
}

static struct day_folder *find_day(struct pb_archive_seen *seen, const char *path)
{
    const struct day_folder key = {.path = (char *)path};
    struct day_folder *found =
        seen->nsorted ? bsearch(&key, seen->at, seen->nsorted, sizeof(key), by_path) : NULL;

    if (found)
        return found;
    struct day_folder *more = realloc(seen->at, (seen->n + 1) * sizeof(*more));
    if (!more)
        return NULL;
    seen->at = more;
    more = &seen->at[seen->n];
    *more = (struct day_folder){.path = strdup(path)};
    if (!more->path)
        return NULL;
    seen->n++;
    return more;
}

/* A change within the granularity of the file system's clock would be missed: a folder that changed shortly
 * before it was read is read again. */
static bool is_known(const struct day_folder *d, const struct stat *st)
{
    return d->dev == st->st_dev && d->ino == st->st_ino && d->changed.tv_sec == st->st_mtim.tv_sec &&
           d->changed.tv_nsec == st->st_mtim.tv_nsec && d->changed.tv_sec < d->looked.tv_sec - 2;
}

static int visit_day(struct archive_walk *w, int at, const char *path)
{
    struct day_folder *d = find_day(w->seen, path);
    struct files files = {0};
    struct stat st;
    int r = 0;

    if (!d)
        return -ENOMEM;
    if (fstat(at, &st) < 0)
        return -errno;
    d->there = true;
    if (!is_known(d, &st)) {
        d->dev = st.st_dev;
        d->ino = st.st_ino;
        d->changed = st.st_mtim;
        clock_gettime(CLOCK_REALTIME, &d->looked);
        r = read_files(w, at, path, &files);
        if (r == 0)
            r = sum_up(d, &files);
        if (r < 0)
            d->looked = (struct timespec){0};
        release_files(&files, 0);
        free(files.at);
    }
    return r;
}

static int visit_folder(struct archive_walk *w, int at, const char *path, unsigned depth)
{
    int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char below[PB_ARCHIVE_PATH];

    for (struct dirent *e; dir && r == 0 && (e = readdir(dir));) {
        if (!fits_level(e->d_name, depth) ||
            snprintf(below, sizeof(below), "%s%s%s", path, depth ? "/" : "", e->d_name) >= (int)sizeof(below))
            continue;
        _cleanup_close_ int next = openat(at, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next >= 0)
            r = depth + 1 == DEPTH ? visit_day(w, next, below) : visit_folder(w, next, below, depth + 1);
    }
    if (dir)
        closedir(dir);
    return r;
}

static void release_day(struct day_folder *d)
{
    free(d->path);
    free(d->runs);
}

/* Drops folders that are gone. */
static void drop_gone_folders(struct pb_archive_seen *seen)
{
    size_t kept = 0;

    for (size_t i = 0; i < seen->n; i++)
        if (seen->at[i].there)
            seen->at[kept++] = seen->at[i];
        else
            release_day(&seen->at[i]);
    seen->n = seen->nsorted = kept;
    if (kept)
        qsort(seen->at, kept, sizeof(*seen->at), by_path);
}

/* --- removing --- */

static struct day_folder *next_unopened(struct pb_archive_seen *seen)
{
    struct day_folder *next = NULL;

    for (size_t i = 0; i < seen->n; i++)
        if (!seen->at[i].opened && seen->at[i].files && (!next || seen->at[i].oldest < next->oldest))
            next = &seen->at[i];
    return next;
}

/* Lists the files of folders that may lose some: those with rows that are too old, and, the oldest first, as
 * many as it takes to get below the size. */
static int open_days(struct archive_walk *w, double oldest, uint64_t excess)
{
    struct day_folder *d;
    int r = 0;

    while (r == 0 && (d = next_unopened(w->seen))) {
        uint64_t sure = 0;
        for (size_t i = 0; i < w->files.n; i++)
            sure += w->files.at[i].last < d->oldest ? w->files.at[i].bytes : 0;
        if ((double)d->oldest / 1e6 >= oldest && sure >= excess)
            break;
        _cleanup_close_ int dir = openat(w->top, d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        r = dir < 0 ? (errno == ENOENT ? 0 : -errno) : read_files(w, dir, d->path, &w->files);
        d->opened = true;
    }
    return r;
}

static int oldest_first(const void *a, const void *b)
{
    const struct archive_file *x = a, *y = b;
    return x->last != y->last ? (x->last < y->last ? -1 : 1) : strcmp(x->path, y->path);
}

/* Removes the folders above a file as long as they are empty. */
static void remove_empty_folders(int top, char *path)
{
    for (char *slash; (slash = strrchr(path, '/'));) {
        *slash = '\0';
        if (unlinkat(top, path, AT_REMOVEDIR) < 0)
            break;
    }
}

static int remove_file(struct archive_walk *w, struct archive_file *f, struct pb_archive_left *kept)
{
    if (unlinkat(w->top, f->path, 0) < 0 && errno != ENOENT)
        return -errno;
    f->gone = true;
    kept->removed++;
    kept->removed_bytes += f->bytes;
    return 0;
}

static int remove_beyond(struct archive_walk *w, double oldest, uint64_t total, struct pb_archive_left *kept)
{
    const struct pb_archive_limits *limits = w->limits;
    int r = 0;

    for (size_t i = 0; r == 0 && i < w->files.n; i++) {
        struct archive_file *f = &w->files.at[i];
        if (!((double)f->last / 1e6 < oldest) && !(limits->bytes && total > limits->bytes))
            continue;
        r = remove_file(w, f, kept);
        if (r == 0)
            total -= f->bytes;
    }
    kept->files -= kept->removed;
    kept->bytes = total;
    return r;
}

/* By run; files that stay first. */
static int by_run(const void *a, const void *b)
{
    const struct archive_file *x = a, *y = b;
    int order = strcmp(x->run, y->run);
    return order ? order : (int)x->gone - (int)y->gone;
}

/* Removes the mark RUN.of-PID-START of a recording. */
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

/* Removes the record of a run that has no files and no recorder. */
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

static bool is_elsewhere(const struct pb_archive_seen *seen, const char *run)
{
    for (size_t i = 0; i < seen->n; i++)
        for (size_t k = 0; !seen->at[i].opened && k < seen->at[i].nruns; k++)
            if (strcmp(seen->at[i].runs[k], run) == 0)
                return true;
    return false;
}

/* Removes the records of runs that lost all of their files. */
static void forget_runs(struct archive_walk *w)
{
    _cleanup_close_ int own = openat(w->top, PB_ARCHIVE_OWN, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const struct archive_file *at = w->files.at;

    qsort(w->files.at, w->files.n, sizeof(*at), by_run);
    for (size_t i = 0; own >= 0 && i < w->files.n; i++)
        if ((i == 0 || strcmp(at[i].run, at[i - 1].run) != 0) && at[i].gone &&
            !is_elsewhere(w->seen, at[i].run))
            forget_run(own, at[i].run);
}

int pb_archive_wait_for_readers(int top)
{
    struct pb_retry again = pb_retry_until(pb_now_ns() + READERS_NS, 50 * PB_NS_PER_MS, 50 * PB_NS_PER_MS);

    while (flock(top, LOCK_EX | LOCK_NB) < 0)
        if (!pb_retry_wait(&again))
            return -EBUSY;
    return 0;
}

static int enforce_limits(struct archive_walk *w, struct pb_archive_left *ret)
{
    const struct pb_archive_limits *limits = w->limits;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    double oldest = limits->days > 0 ? (double)now.tv_sec - limits->days * 86400 : -1e300;
    for (size_t i = 0; i < w->seen->n; i++) {
        ret->files += w->seen->at[i].files;
        ret->bytes += w->seen->at[i].bytes;
    }
    uint64_t excess = limits->bytes && ret->bytes > limits->bytes ? ret->bytes - limits->bytes : 0;
    int r = open_days(w, oldest, excess);
    if (r < 0 || w->files.n == 0)
        return r;
    qsort(w->files.at, w->files.n, sizeof(*w->files.at), oldest_first);
    r = pb_archive_wait_for_readers(w->top);
    return r < 0 ? r : remove_beyond(w, oldest, ret->bytes, ret);
}

struct pb_archive_seen *pb_archive_seen_new(void)
{
    return calloc(1, sizeof(struct pb_archive_seen));
}

void pb_archive_seen_free(struct pb_archive_seen *seen)
{
    for (size_t i = 0; seen && i < seen->n; i++)
        release_day(&seen->at[i]);
    if (seen)
        free(seen->at);
    free(seen);
}

/* When the limits apply to other runs than before, the cached sums are dropped. */
static void begin_round(struct pb_archive_seen *seen, const struct pb_archive_limits *limits)
{
    size_t nruns = limits->runs ? limits->nruns : SIZE_MAX;

    for (size_t i = 0; i < seen->n; i++) {
        seen->at[i].there = seen->at[i].opened = false;
        if (seen->nruns != nruns)
            seen->at[i].looked = (struct timespec){0};
    }
    seen->nruns = nruns;
}

int pb_archive_keep(const char *folder, const struct pb_archive_limits *limits, struct pb_archive_seen *seen,
                    struct pb_archive_left *ret, struct pb_err *err)
{
    struct archive_walk w = {
        .top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .limits = limits, .seen = seen};

    *ret = (struct pb_archive_left){0};
    _cleanup_close_ int top = w.top;
    if (top < 0)
        return pb_fail(err, -errno, "the archive %s cannot be read: %s", folder, strerror(errno));
    begin_round(seen, limits);
    int r = visit_folder(&w, top, "", 0);
    drop_gone_folders(seen);
    if (r == 0)
        r = enforce_limits(&w, ret);
    if (r < 0)
        pb_fail(err, r, "old files of %s were not removed: %s", folder,
                r == -EBUSY ? "queries read it without a pause (the next round tries again)" : strerror(-r));
    if (ret->removed)
        forget_runs(&w);
    for (size_t i = 0; i < w.files.n; i++)
        if (w.files.at[i].gone)
            remove_empty_folders(top, w.files.at[i].path);
    release_files(&w.files, 0);
    free(w.files.at);
    return r;
}
