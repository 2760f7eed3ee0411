/* broker_slot: see broker_slot.h.
 *
 * The user's directory holds for each slot a lock, held while the worker is in use, and the worker's socket.
 * The lock is released when its process ends, for whatever reason: the caller holds it until it has found the
 * worker, then the worker until the query has ended. A socket is named after its program, so that an upgrade
 * or another installation never talks to a worker of the old one. */
#include "engine/caller/broker_slot.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/null.h"
#include "base/own_folder.h"
#include "base/process.h"
#include "base/program.h"
#include "base/retry.h"
#include "control/rundir.h"
#include "engine/caller/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_SIZE = 512, LEAST_SLOTS = 4, MOST_SLOTS = 8, WORKER_FD = 3 };

unsigned pb_sql_workers(void)
{
    long n = 2 * sysconf(_SC_NPROCESSORS_ONLN);
    return n < LEAST_SLOTS ? LEAST_SLOTS : n > MOST_SLOTS ? MOST_SLOTS : (unsigned)n;
}

/* probing-sql in the same folder as this program. PROBING_SQL_WORKER names another, for tests. */
static int worker_path(char ret[PATH_SIZE], uint64_t *ret_id, struct pb_err *err)
{
    const char *set = secure_getenv("PROBING_SQL_WORKER");
    struct stat st;
    int r = 0;

    if (set && *set)
        snprintf(ret, PATH_SIZE, "%s", set);
    else
        r = pb_program_beside("probing-sql", ret, PATH_SIZE);
    if (r < 0)
        return pb_fail(err, r, "cannot find the probing executable: %s", strerror(-r));
    if (stat(ret, &st) < 0 || access(ret, X_OK) < 0)
        return pb_fail(err, -ENOENT, "%s not found (this installation is incomplete; install it again)", ret);
    *ret_id = (uint64_t)st.st_ino * 1000003 ^ (uint64_t)st.st_mtim.tv_sec * 1000000007 ^
              (uint64_t)st.st_mtim.tv_nsec;
    return 0;
}

static int open_directory(char ret[PATH_SIZE])
{
    pb_own_folder_path("probing", "probing-sql", ret, PATH_SIZE);
    return pb_rundir_open_own(ret);
}

static void exec_worker(const char *path, const char *mode, int fd, const char *argument)
{
    static char *const environment[] = {"TZ=UTC", "LC_ALL=C", NULL};
    char *arguments[] = {"probing-sql", (char *)mode, "3", (char *)argument, NULL};

    /* The worker outlives this process and must not keep its pipes: a reader would wait for its end. */
    pb_null_over(0, 2);
    if (fd == WORKER_FD)
        fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, WORKER_FD);
    if (syscall(SYS_close_range, WORKER_FD + 1, ~0u, 0) < 0)
        for (int i = WORKER_FD + 1; i < 1024; i++)
            close(i);
    if (chdir("/") == 0)
        execve(path, arguments, environment);
    _exit(127);
}

/* The worker outlives this process, which need not wait for it. */
static int start_worker(const char *path, const char *mode, int fd, const char *argument, struct pb_err *err)
{
    int r = pb_process_orphan();

    if (r == 0)
        exec_worker(path, mode, fd, argument);
    return r < 0 ? pb_fail(err, r, "the SQL worker cannot be started: %s", strerror(-r)) : 0;
}

static int address_of(int dir, const char *name, struct sockaddr_un *ret)
{
    ret->sun_family = AF_UNIX;
    /* By descriptor: the path may be longer than an address. */
    snprintf(ret->sun_path, sizeof(ret->sun_path), "/proc/self/fd/%d/%s", dir, name);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int connect_to(int dir, const char *name)
{
    struct sockaddr_un address;

    _cleanup_close_ int fd = address_of(dir, name, &address);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    return pb_take_fd(fd);
}

static int start_listener(int dir, const char *name, const char *path, const char *archive,
                          struct pb_err *err)
{
    struct sockaddr_un address;

    unlinkat(dir, name, 0);
    _cleanup_close_ int fd = address_of(dir, name, &address);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 4) < 0)
        return pb_fail(err, -errno, "no socket for the SQL worker: %s", strerror(errno));
    int r = start_worker(path, "listen", fd, archive, err);
    if (r < 0)
        return r;
    /* Connect while the listener is still open here: if the worker fails to start, the connection is
     * reset. */
    int connected = connect_to(dir, name);
    return connected < 0 ? pb_fail(err, connected, "the SQL worker does not answer: %s", strerror(-connected))
                         : connected;
}

/* Starts a worker for one use. */
static int start_private(const char *path, const char *mode, const char *argument, struct pb_err *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pb_fail(err, -errno, "no socket for the SQL worker: %s", strerror(errno));
    int r = start_worker(path, mode, pair[1], argument, err);
    close(pair[1]);
    if (r < 0)
        close(pair[0]);
    return r < 0 ? r : pair[0];
}

int pb_worker_start_writer(const char *file, struct pb_err *err)
{
    char path[PATH_SIZE];
    uint64_t id;

    int r = worker_path(path, &id, err);
    return r < 0 ? r : start_private(path, "parquet", file, err);
}

int pb_worker_start_archiver(struct pb_err *err)
{
    char path[PATH_SIZE];
    uint64_t id;

    int r = worker_path(path, &id, err);
    return r < 0 ? r : start_private(path, "archive", NULL, err);
}

/* Without a runtime directory. */
static int take_private(struct pb_worker *ret, const char *path, const char *archive, struct pb_err *err)
{
    int socket = start_private(path, "serve", archive, err);
    if (socket >= 0)
        *ret = (struct pb_worker){.lock = -1, .socket = socket};
    return socket < 0 ? socket : 0;
}

static int lock_file(int dir, const char *name)
{
    _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    return flock(fd, LOCK_EX | LOCK_NB) == 0 ? pb_take_fd(fd) : -EAGAIN;
}

/* The lock of a free slot; -EAGAIN: all are in use. */
static int lock_slot(int dir, unsigned *ret_slot)
{
    for (unsigned i = 0; i < pb_sql_workers(); i++) {
        char name[32];
        snprintf(name, sizeof(name), "sql-%u.lock", i);
        int fd = lock_file(dir, name);
        if (fd >= 0)
            *ret_slot = i;
        if (fd != -EAGAIN)
            return fd;
    }
    return -EAGAIN;
}

/* Waits for a lock. The intervals vary, so that no caller is always second, and grow up to `most`: a hundred
 * callers that poll every millisecond would keep the workers from the CPU. */
static int wait_for(int dir, uint64_t deadline, const struct pb_cancel *cancel, uint64_t most,
                    int (*lock)(int dir, void *arg), void *arg)
{
    struct pb_retry again = pb_retry_until(deadline, PB_NS_PER_MS, most);
    int fd;

    again.uneven = true;
    while ((fd = lock(dir, arg)) == -EAGAIN) {
        if (pb_cancel_is_set(cancel))
            return -ECANCELED;
        if (!pb_retry_wait(&again))
            return -ETIMEDOUT;
    }
    return fd;
}

static int lock_queue(int dir, void *arg)
{
    return lock_file(dir, "sql-queue.lock");
}

static int lock_any(int dir, void *ret_slot)
{
    return lock_slot(dir, ret_slot);
}

/* The lock of a slot. All callers go through one queue, so that a caller that just had a worker does not
 * overtake those that wait. */
static int wait_for_slot(int dir, uint64_t deadline, const struct pb_cancel *cancel, unsigned *ret_slot)
{
    _cleanup_close_ int queue = wait_for(dir, deadline, cancel, 16 * PB_NS_PER_MS, lock_queue, NULL);
    return queue < 0 ? queue : wait_for(dir, deadline, cancel, PB_NS_PER_MS, lock_any, ret_slot);
}

int pb_worker_take(struct pb_worker *ret, int fresh, const char *archive, uint64_t deadline,
                   const struct pb_cancel *cancel, struct pb_err *err)
{
    char path[PATH_SIZE], directory[PATH_SIZE], name[64];
    uint64_t id = 0;
    unsigned slot = 0;

    int r = worker_path(path, &id, err);
    if (r < 0)
        return r;
    _cleanup_close_ int dir = open_directory(directory);
    if (dir < 0)
        return take_private(ret, path, archive, err);
    /* A worker that may read an archive never serves queries without one, nor those of another. */
    id = archive ? pb_hash_text(id, archive) : id;
    _cleanup_close_ int lock = wait_for_slot(dir, deadline, cancel, &slot);
    if (lock == -ECANCELED)
        return pb_fail(err, lock, "stopped");
    if (lock == -ETIMEDOUT)
        return pb_fail(err, lock,
                       "timed out: all %u SQL workers are busy with other queries (try again, or --timeout)",
                       pb_sql_workers());
    if (lock < 0)
        return take_private(ret, path, archive, err);
    snprintf(name, sizeof(name), "sql-%u-%016llx", slot, (unsigned long long)id);
    int socket = fresh ? -ECONNREFUSED : connect_to(dir, name);
    if (socket < 0)
        socket = start_listener(dir, name, path, archive, err);
    if (socket < 0)
        return socket;
    *ret = (struct pb_worker){.lock = pb_take_fd(lock), .socket = socket};
    return 0;
}

void pb_worker_done(struct pb_worker *s)
{
    if (s->socket >= 0)
        close(s->socket);
    if (s->lock >= 0)
        close(s->lock);
    *s = (struct pb_worker){.lock = -1, .socket = -1};
}
