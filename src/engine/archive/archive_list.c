/* archive_list: see archive_list.h. */
#include "engine/archive/archive_list.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "remote/runs.h"
#include "table/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TEXT = 64 << 10 };

int pb_archive_run_id(int arena_fd, char ret[PB_ARCHIVE_RUN])
{
    struct pb_file_header h;

    ssize_t n = pread(arena_fd, &h, sizeof(h), 0);
    if (n != sizeof(h))
        return n < 0 ? -errno : -ENODATA;
    /* Unique for each arena: the machine's boot, the process, and the time of creation. */
    const uint64_t numbers[] = {h.pid, h.start_time, (uint64_t)h.mono_ns, (uint64_t)h.real_ns};
    uint64_t hash = pb_hash_bytes(PB_HASH_START, h.boot_id, sizeof(h.boot_id));
    hash = pb_hash_bytes(hash, numbers, sizeof(numbers));
    snprintf(ret, PB_ARCHIVE_RUN, "%016llx", (unsigned long long)hash);
    return 0;
}

int pb_archive_open_folder_at(int at, const char *path)
{
    int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int read_text(int dir, const char *name, char *ret, size_t size)
{
    struct stat st;

    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return -EINVAL;
    ssize_t n = read(fd, ret, size - 1);
    ret[n > 0 ? n : 0] = '\0';
    return n < 0 ? -errno : (int)n;
}

int pb_archive_each_name(int dir_fd, int (*each)(void *arg, int dir, const char *name, unsigned char type),
                         void *arg)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir) {
        r = -errno;
        if (fd >= 0)
            close(fd);
        return r;
    }
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            r = each(arg, dir_fd, e->d_name, e->d_type);
    closedir(dir);
    return r;
}

/* --- runs --- */

static int read_run(int own, const char *id, struct pb_archive_run *ret)
{
    struct pb_run_info about = {.dir_fd = -1};
    char job[256], node[256], rank[256], number[32];
    struct stat st;

    if (strlen(id) != PB_ARCHIVE_RUN - 1 || strspn(id, "0123456789abcdef") != PB_ARCHIVE_RUN - 1)
        return -ENOENT;
    _cleanup_close_ int dir = pb_archive_open_folder_at(own, id);
    if (dir < 0)
        return dir;
    int r = read_text(dir, "about", about.about, sizeof(about.about));
    if (r < 0)
        return r;
    struct pb_archive_run run = {.rank = -1};
    memcpy(run.id, id, sizeof(run.id));
    memcpy(run.about, about.about, sizeof(run.about));
    run.pid = (pid_t)atoi(pb_run_get(&about, "pid", number, sizeof(number)));
    run.start_time = strtoull(pb_run_get(&about, "start_time", number, sizeof(number)), NULL, 10);
    run.recording = pb_run_get(&about, "recording", number, sizeof(number))[0];
    pb_run_get(&about, "rank", rank, sizeof(rank));
    if (rank[0])
        run.rank = atoi(rank);
    r = pb_archive_partition(pb_run_get(&about, "job", job, sizeof(job)),
                             pb_run_get(&about, "node", node, sizeof(node)), rank, run.partition,
                             sizeof(run.partition));
    if (r < 0)
        return r;
    run.changed = fstat(dir, &st) == 0 ? st.st_mtime : 0;
    *ret = run;
    return 0;
}

static int open_own(const char *folder)
{
    _cleanup_close_ int top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return top < 0 ? -errno : pb_archive_open_folder_at(top, PB_ARCHIVE_OWN);
}

static int add_run(void *arg, int own, const char *name, unsigned char type)
{
    struct pb_archive_runs *runs = arg;
    struct pb_archive_run *run = malloc(sizeof(*run));

    if (!run)
        return -ENOMEM;
    if (read_run(own, name, run) < 0) {
        free(run);
        return 0;
    }
    /* Grows by half, so that few copies are made. */
    if (runs->n == runs->room) {
        size_t room = runs->room + runs->room / 2 + 16;
        struct pb_archive_run *more = realloc(runs->at, room * sizeof(*more));
        if (!more) {
            free(run);
            return -ENOMEM;
        }
        runs->at = more;
        runs->room = room;
    }
    runs->at[runs->n++] = *run;
    free(run);
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct pb_archive_run *x = a, *y = b;
    return x->changed != y->changed ? (x->changed < y->changed ? 1 : -1) : strcmp(x->id, y->id);
}

int pb_archive_runs_read(const char *folder, struct pb_archive_runs *ret, struct pb_err *err)
{
    *ret = (struct pb_archive_runs){0};
    _cleanup_close_ int own = open_own(folder);
    if (own == -ENOENT || own == -ENOTDIR)
        return 0;
    int r = own < 0 ? own : pb_archive_each_name(own, add_run, ret);
    if (r < 0) {
        pb_archive_runs_done(ret);
        return pb_fail(err, r, "the archive in %s cannot be read: %s", folder, strerror(-r));
    }
    if (ret->n)
        qsort(ret->at, ret->n, sizeof(*ret->at), newest_first);
    return 0;
}

void pb_archive_runs_done(struct pb_archive_runs *runs)
{
    free(runs->at);
    *runs = (struct pb_archive_runs){0};
}

int pb_archive_run_read(const char *folder, const char *id, struct pb_archive_run *ret)
{
    _cleanup_close_ int own = open_own(folder);
    return own < 0 ? own : read_run(own, id, ret);
}

struct archive_recordings {
    char of[64]; /* the end of the names of their marks */
    char (*ids)[PB_ARCHIVE_RUN];
    unsigned n, max;
};

static int add_recording(void *arg, int own, const char *name, unsigned char type)
{
    struct archive_recordings *all = arg;
    size_t id = PB_ARCHIVE_RUN - 1;

    if (strnlen(name, id) < id || strncmp(name + id, all->of, strlen(all->of)) != 0)
        return 0;
    /* The whole number must match. Without a start time "-" ends it. */
    size_t end = id + strlen(all->of);
    if (name[end] && all->of[strlen(all->of) - 1] != '-')
        return 0;
    snprintf(all->ids[all->n], PB_ARCHIVE_RUN, "%.16s", name);
    return ++all->n == all->max;
}

unsigned pb_archive_recordings(const char *folder, pid_t pid, uint64_t start_time,
                               char (*ret)[PB_ARCHIVE_RUN], unsigned max)
{
    struct archive_recordings all = {.ids = ret, .max = max};

    _cleanup_close_ int own = open_own(folder);
    int n = snprintf(all.of, sizeof(all.of), PB_ARCHIVE_OF "%d-", (int)pid);
    if (start_time)
        snprintf(all.of + n, sizeof(all.of) - (size_t)n, "%llu", (unsigned long long)start_time);
    if (own >= 0 && max)
        pb_archive_each_name(own, add_recording, &all);
    return all.n;
}

struct tables {
    int (*each)(void *arg, const char *table, const char *columns);
    void *arg;
    char *text;
};

static int add_table(void *arg, int dir, const char *name, unsigned char type)
{
    struct tables *t = arg;
    const char *end = strstr(name, ".columns");
    char table[128];

    if (!end || end == name || end[strlen(".columns")] || (size_t)(end - name) >= sizeof(table) ||
        name[0] == '.' || read_text(dir, name, t->text, MAX_TEXT) < 0)
        return 0;
    snprintf(table, sizeof(table), "%.*s", (int)(end - name), name);
    return t->each(t->arg, table, t->text);
}

int pb_archive_tables(const char *folder, const char *run,
                      int (*each)(void *arg, const char *table, const char *columns), void *arg)
{
    struct tables t = {.each = each, .arg = arg};

    _cleanup_close_ int own = open_own(folder);
    _cleanup_close_ int dir = own < 0 ? own : pb_archive_open_folder_at(own, run);
    if (dir < 0)
        return dir;
    t.text = malloc(MAX_TEXT);
    int r = t.text ? pb_archive_each_name(dir, add_table, &t) : -ENOMEM;
    free(t.text);
    return r;
}

int pb_archive_hold(const char *folder)
{
    _cleanup_close_ int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return flock(fd, LOCK_SH) < 0 ? -errno : pb_take_fd(fd);
}
