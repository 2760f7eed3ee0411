/* rundir: see rundir.h. */
#include "control/rundir.h"

#include "control/listing.h"
#include "control/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME_SIZE  112
#define STARTING_S 10

struct dead {
    char name[NAME_SIZE];
    time_t changed;
    uint64_t bytes;
    time_t keep_s; /* the run's own retention; 0: none was set */
};

int pb_rundir_open_own(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

int pb_rundir_open_user(const char *root, char *path, size_t size)
{
    if (snprintf(path, size, "%s/probing-%u", root, (unsigned)geteuid()) >= (int)size)
        return -ENAMETOOLONG;
    return pb_rundir_open_own(path);
}

bool pb_rundir_locked(int about_fd)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    return fcntl(about_fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void pb_rundir_remove(int user_fd, const char *name)
{
    static const char *const files[] = {"control", "secret",         "arena",
                                        "about",   PB_SETTINGS_FILE, PB_SETTINGS_FILE_NEW};

    int fd = openat(user_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlinkat(fd, files[i], 0);
    close(fd);
    unlinkat(user_fd, name, AT_REMOVEDIR);
}

/* The retention that was set for the run, in seconds; 0: none. */
static time_t retention_of(int user_fd, const char *name)
{
    char path[NAME_SIZE + 8], text[PB_SETTINGS_FILE_SIZE];
    struct pb_settings s;

    snprintf(path, sizeof(path), "%s/" PB_SETTINGS_FILE, name);
    int fd = openat(user_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    pb_settings_init(&s, "", 0);
    pb_settings_read(&s, text);
    return s.at[PB_SET_RETENTION_DAYS].origin == PB_ORIGIN_DEFAULT
               ? 0
               : (time_t)(s.at[PB_SET_RETENTION_DAYS].number * 86400) + 1;
}

/* 1: a dead run, described in *ret; 0: alive, starting up, or not a run. */
static int read_dead_run(int user_fd, const char *name, struct dead *ret)
{
    char path[NAME_SIZE + 8];
    struct stat st;

    if (name[0] < '0' || name[0] > '9' || strlen(name) >= NAME_SIZE)
        return 0;
    snprintf(path, sizeof(path), "%s/about", name);
    int fd = openat(user_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        /* Left by an agent that died while it started. Directories of the last moments may belong to one that
         * is still starting. */
        if (fstatat(user_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && time(NULL) - st.st_mtime > STARTING_S)
            unlinkat(user_fd, name, AT_REMOVEDIR);
        return 0;
    }
    bool dead = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !pb_rundir_locked(fd);
    close(fd);
    /* An agent that is just starting has written the file but not locked it yet. */
    if (!dead || time(NULL) - st.st_mtime < STARTING_S)
        return 0;
    *ret = (struct dead){.changed = st.st_mtime, .keep_s = retention_of(user_fd, name)};
    snprintf(ret->name, sizeof(ret->name), "%s", name);
    snprintf(path, sizeof(path), "%s/arena", name);
    if (fstatat(user_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        ret->changed = st.st_mtime;
        ret->bytes = (uint64_t)st.st_blocks * 512;
    }
    return 1;
}

/* The newest runs, newest first. On the stack, since the agent uses this code too and must not take the
 * host's heap lock. */
struct newest {
    struct dead at[PB_RUNDIR_KEEP_RUNS];
    size_t n;
};

/* Inserts a run in order; without room the oldest run is removed. Returns how many were removed. */
static int keep_newest_run(int user_fd, struct newest *kept, const struct dead *run)
{
    size_t i = kept->n;
    int removed = 0;

    while (i > 0 && kept->at[i - 1].changed < run->changed)
        i--;
    if (i == PB_RUNDIR_KEEP_RUNS) {
        pb_rundir_remove(user_fd, run->name);
        return 1;
    }
    if (kept->n == PB_RUNDIR_KEEP_RUNS) {
        pb_rundir_remove(user_fd, kept->at[--kept->n].name);
        removed = 1;
    }
    memmove(&kept->at[i + 1], &kept->at[i], (kept->n - i) * sizeof(kept->at[0]));
    kept->at[i] = *run;
    kept->n++;
    return removed;
}

int pb_rundir_collect(int user_fd, uint64_t keep_bytes, time_t keep_s)
{
    _Alignas(struct pb_listed) char entries[4096];
    struct newest runs = {.n = 0};
    struct dead run;
    uint64_t kept = 0;
    int removed = 0;

    int fd = openat(user_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    for (long n; (n = syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0;)
        for (long at = 0; at < n;) {
            const struct pb_listed *e = (const struct pb_listed *)(void *)(entries + at);
            at += e->size;
            if (read_dead_run(user_fd, e->name, &run))
                removed += keep_newest_run(user_fd, &runs, &run);
        }
    close(fd);
    for (size_t i = 0; i < runs.n; i++) {
        kept += runs.at[i].bytes;
        time_t keep_this = runs.at[i].keep_s ? runs.at[i].keep_s : keep_s;
        if (kept <= keep_bytes && time(NULL) - runs.at[i].changed <= keep_this)
            continue;
        kept -= runs.at[i].bytes;
        pb_rundir_remove(user_fd, runs.at[i].name);
        removed++;
    }
    return removed;
}
