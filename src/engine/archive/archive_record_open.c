/* archive_record_open: opens and closes a recorder: the folder of a run in an archive, and its lock. */
#include "engine/archive/archive_record_impl.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/retry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NS PB_NS_PER_S /* for the writer of a killed recorder to release the lock */

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

static int take_lock(struct pb_archiver *r, pid_t pid, struct pb_err *err)
{
    char who[32] = "";

    r->lock_fd = openat(r->own_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (r->lock_fd < 0)
        return pb_fail(err, -errno, "the archive %s cannot be written: %s", r->folder, strerror(errno));
    struct pb_retry again = pb_retry_until(pb_now_ns() + LOCK_NS, 20 * PB_NS_PER_MS, 20 * PB_NS_PER_MS);
    do {
        if (flock(r->lock_fd, LOCK_EX | LOCK_NB) == 0) {
            pb_archiver_sign(r);
            return 0;
        }
        ssize_t n = pread(r->lock_fd, who, sizeof(who) - 1, 0);
        who[n > 0 ? n : 0] = '\0';
        who[strspn(who, "0123456789")] = '\0';
        /* The recorder was killed while it started its writer: the child releases the lock at once. */
        if (!who[0] || kill((pid_t)atoi(who), 0) == 0 || errno != ESRCH)
            break;
    } while (pb_retry_wait(&again));
    return pb_fail(err, -EBUSY, "process %d is being archived to %s already (by process %s)", (int)pid,
                   r->folder, who[0] ? who : "of another machine");
}

void pb_archiver_sign(struct pb_archiver *r)
{
    char who[32];

    int n = snprintf(who, sizeof(who), "%d\n", (int)getpid());
    /* For people to read: the lock itself is in the kernel. */
    if (ftruncate(r->lock_fd, 0) < 0 || pwrite(r->lock_fd, who, (size_t)n, 0) < 0)
        return;
}

static int open_places(struct pb_archiver *r, const struct pb_archiver_options *o, struct pb_err *err)
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

int pb_archiver_open(const struct pb_archiver_options *o, struct pb_archiver **ret, struct pb_err *err)
{
    char why[PB_WHY_SIZE];
    struct pb_archiver *r = calloc(1, sizeof(*r));

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
        pb_archiver_close(r);
        return x;
    }
    pb_reader_info(r->reader, &r->info);
    *ret = r;
    return 0;
}

void pb_archiver_close_writer(struct pb_archiver *r)
{
    if (r->writer >= 0)
        close(r->writer);
    r->writer = -1;
}

void pb_archiver_close(struct pb_archiver *r)
{
    const int fds[] = {r->folder_fd, r->own_fd, r->lock_fd};

    pb_archiver_close_writer(r);
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

const char *pb_archiver_place(const struct pb_archiver *r)
{
    return r->place;
}
