/* archive_list: see archive_list.h. */
#include "engine/archive/archive_list.h"

#include "base/cleanup.h"
#include "base/err.h"
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
    uint64_t hash = 14695981039346656037ull;

    ssize_t n = pread(arena_fd, &h, sizeof(h), 0);
    if (n != sizeof(h))
        return n < 0 ? -errno : -ENODATA;
    /* What no two arenas have in common: the machine's boot, the process, and the moment it was made. */
    const struct {
        unsigned char boot[16];
        uint64_t numbers[4];
    } key = {.numbers = {h.pid, h.start_time, (uint64_t)h.mono_ns, (uint64_t)h.real_ns}};
    const unsigned char *parts[] = {h.boot_id, (const unsigned char *)key.numbers};
    const size_t sizes[] = {sizeof(h.boot_id), sizeof(key.numbers)};
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            hash = (hash ^ parts[i][k]) * 1099511628211ull;
    snprintf(ret, PB_ARCHIVE_RUN, "%016llx", (unsigned long long)hash);
    return 0;
}

static int open_folder(int at, const char *path)
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

/* The names in a folder that a callback wants; a negative answer ends it. */
static int each_name(int dir_fd, int (*each)(void *arg, int dir, const char *name), void *arg)
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
            r = each(arg, dir_fd, e->d_name);
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
    _cleanup_close_ int dir = open_folder(own, id);
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
    return top < 0 ? -errno : open_folder(top, PB_ARCHIVE_OWN);
}

static int add_run(void *arg, int own, const char *name)
{
    struct pb_archive_runs *runs = arg;
    struct pb_archive_run *run = malloc(sizeof(*run));

    if (!run)
        return -ENOMEM;
    if (read_run(own, name, run) < 0) {
        free(run);
        return 0;
    }
    /* Room grows by half, so that an archive of many runs is not copied again for each. */
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
    int r = own < 0 ? own : each_name(own, add_run, ret);
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

struct recordings {
    char of[64]; /* how the names of their marks go on */
    char (*ids)[PB_ARCHIVE_RUN];
    unsigned n, max;
};

static int add_recording(void *arg, int own, const char *name)
{
    struct recordings *all = arg;
    size_t id = PB_ARCHIVE_RUN - 1;

    if (strnlen(name, id) < id || strncmp(name + id, all->of, strlen(all->of)) != 0)
        return 0;
    /* A whole number: "-" without a start stands for all. */
    size_t end = id + strlen(all->of);
    if (name[end] && all->of[strlen(all->of) - 1] != '-')
        return 0;
    snprintf(all->ids[all->n], PB_ARCHIVE_RUN, "%.16s", name);
    return ++all->n == all->max;
}

unsigned pb_archive_recordings(const char *folder, pid_t pid, uint64_t start_time,
                               char (*ret)[PB_ARCHIVE_RUN], unsigned max)
{
    struct recordings all = {.ids = ret, .max = max};

    _cleanup_close_ int own = open_own(folder);
    int n = snprintf(all.of, sizeof(all.of), PB_ARCHIVE_OF "%d-", (int)pid);
    if (start_time)
        snprintf(all.of + n, sizeof(all.of) - (size_t)n, "%llu", (unsigned long long)start_time);
    if (own >= 0 && max)
        each_name(own, add_recording, &all);
    return all.n;
}

struct tables {
    int (*each)(void *arg, const char *table, const char *columns);
    void *arg;
    char *text;
};

static int add_table(void *arg, int dir, const char *name)
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
    _cleanup_close_ int dir = own < 0 ? own : open_folder(own, run);
    if (dir < 0)
        return dir;
    t.text = malloc(MAX_TEXT);
    int r = t.text ? each_name(dir, add_table, &t) : -ENOMEM;
    free(t.text);
    return r;
}

/* --- files --- */

struct listing {
    struct pb_archive_files *files;
    const char *run;    /* NULL: of all runs */
    const char *prefix; /* TABLE/PARTITION */
    const char *date;
    char (*dates)[16];
    size_t ndates;
};

static int add_date(void *arg, int dir, const char *name)
{
    struct listing *l = arg;

    if (strncmp(name, "date=", 5) != 0 || strlen(name) >= sizeof(*l->dates))
        return 0;
    void *more = realloc(l->dates, (l->ndates + 1) * sizeof(*l->dates));
    if (!more)
        return -ENOMEM;
    l->dates = more;
    memcpy(l->dates[l->ndates++], name, strlen(name) + 1);
    return 0;
}

static int add_file(void *arg, int dir, const char *name)
{
    struct listing *l = arg;
    struct pb_archive_files *files = l->files;
    struct pb_archive_file file;
    struct stat st;

    if (pb_archive_name_read(name, &file.name) < 0 || (l->run && strcmp(file.name.run, l->run) != 0) ||
        fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (snprintf(file.path, sizeof(file.path), "%s/%s/%s", l->prefix, l->date, name) >=
        (int)sizeof(file.path))
        return 0;
    if (files->n == files->room) {
        size_t room = files->room + files->room / 2 + 64;
        struct pb_archive_file *more = realloc(files->at, room * sizeof(*more));
        if (!more)
            return -ENOMEM;
        files->at = more;
        files->room = room;
    }
    files->at[files->n++] = file;
    return 0;
}

static int newest_date(const void *a, const void *b)
{
    return strcmp(b, a);
}

/* Those of one run beside each other, oldest first. */
static int oldest_first(const void *a, const void *b)
{
    const struct pb_archive_name *x = &((const struct pb_archive_file *)a)->name,
                                 *y = &((const struct pb_archive_file *)b)->name;
    int run = strcmp(x->run, y->run);
    return run ? run : x->first != y->first ? (x->first < y->first ? -1 : 1) : strcmp(x->serials, y->serials);
}

/* The parts of a batch beside each other, the last of them first. */
static int by_batch(const void *a, const void *b)
{
    const struct pb_archive_name *x = &((const struct pb_archive_file *)a)->name,
                                 *y = &((const struct pb_archive_file *)b)->name;
    int run = strcmp(x->run, y->run), serials = strcmp(x->serials, y->serials);
    return run                    ? run
           : serials              ? serials
           : x->parts != y->parts ? (x->parts < y->parts ? -1 : 1)
                                  : (int)y->part - (int)x->part;
}

static bool is_same_batch(const struct pb_archive_name *a, const struct pb_archive_name *b)
{
    return a->parts == b->parts && strcmp(a->run, b->run) == 0 && strcmp(a->serials, b->serials) == 0;
}

/* Whether a name waits for its rename, of any part of that batch. */
static int is_waiting(void *arg, int dir, const char *name)
{
    const struct pb_archive_name *wanted = arg;
    struct pb_archive_name found;

    /* .commit.date=YYYY-MM-DD.NAME */
    const char *rest = strncmp(name, ".commit.", 8) == 0 ? strchr(name + 8, '.') : NULL;
    return rest && pb_archive_name_read(rest + 1, &found) == 0 && strcmp(found.run, wanted->run) == 0 &&
           strcmp(found.serials, wanted->serials) == 0;
}

/* Renames go from a batch's first day to its last, and days were listed from the last to the first: where
 * the last part was seen, all others were. *ret_again: a batch may have been finished while we looked. */
static int leave_out_half_batches(struct pb_archive_files *files, int partition, bool *ret_again)
{
    size_t kept = 0;

    if (files->n)
        qsort(files->at, files->n, sizeof(*files->at), by_batch);
    for (size_t i = 0, next; i < files->n; i = next) {
        struct pb_archive_name *name = &files->at[i].name;
        for (next = i + 1; next < files->n && is_same_batch(name, &files->at[next].name);)
            next++;
        if (name->part != name->parts) {
            int r = each_name(partition, is_waiting, name);
            if (r < 0)
                return r;
            if (r > 0)
                continue;
            /* Or somebody has removed its last day: the others stay. */
            *ret_again = true;
        }
        memmove(&files->at[kept], &files->at[i], (next - i) * sizeof(*files->at));
        kept += next - i;
    }
    files->n = kept;
    return 0;
}

static int list_once(int partition, struct listing *l)
{
    l->ndates = 0;
    l->files->n = 0;
    int r = each_name(partition, add_date, l);
    if (r == 0 && l->ndates)
        qsort(l->dates, l->ndates, sizeof(*l->dates), newest_date);
    for (size_t i = 0; r == 0 && i < l->ndates; i++) {
        _cleanup_close_ int dir = open_folder(partition, l->dates[i]);
        l->date = l->dates[i];
        if (dir >= 0)
            r = each_name(dir, add_file, l);
    }
    return r;
}

static int list_files(const char *folder, const char *table, const char *in, const char *run,
                      struct pb_archive_files *ret)
{
    char prefix[PB_ARCHIVE_PATH];
    struct listing l = {.files = ret, .run = run, .prefix = prefix};

    *ret = (struct pb_archive_files){0};
    if (snprintf(prefix, sizeof(prefix), "%s/%s", table, in) >= (int)sizeof(prefix))
        return -ENAMETOOLONG;
    _cleanup_close_ int top = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_close_ int partition = top < 0 ? -errno : open_folder(top, prefix);
    if (partition < 0)
        return partition == -ENOENT ? 0 : partition;
    bool again = true;
    int r = 0;
    for (int tries = 0; r == 0 && again && tries < 2; tries++) {
        again = false;
        r = list_once(partition, &l);
        if (r == 0)
            r = leave_out_half_batches(ret, partition, &again);
    }
    free(l.dates);
    if (r < 0)
        pb_archive_files_done(ret);
    else if (ret->n)
        qsort(ret->at, ret->n, sizeof(*ret->at), oldest_first);
    return r;
}

int pb_archive_files_read(const char *folder, const struct pb_archive_run *run, const char *table,
                          struct pb_archive_files *ret)
{
    return list_files(folder, table, run->partition, run->id, ret);
}

int pb_archive_partition_read(const char *folder, const char *partition, const char *table,
                              struct pb_archive_files *ret)
{
    return list_files(folder, table, partition, NULL, ret);
}

size_t pb_archive_files_of(const struct pb_archive_files *files, const char *run, size_t *ret_n)
{
    size_t low = 0, high = files->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(files->at[middle].name.run, run) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*ret_n = 0; low + *ret_n < files->n && strcmp(files->at[low + *ret_n].name.run, run) == 0;)
        ++*ret_n;
    return low;
}

void pb_archive_files_done(struct pb_archive_files *files)
{
    free(files->at);
    *files = (struct pb_archive_files){0};
}

int pb_archive_hold(const char *folder)
{
    _cleanup_close_ int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return flock(fd, LOCK_SH) < 0 ? -errno : pb_take_fd(fd);
}
