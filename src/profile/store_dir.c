/* store_dir: see store_dir.h. The layout is that of an agent's run (control/rundir.h), made by the recording
 * process and named after it, so that recordings are found, read and collected like runs. */
#include "profile/store_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "control/rundir.h"
#include "remote/procinfo.h"
#include "table/arena.h"

#define BOUND     ((uint64_t)64 << 20)
#define NAMES_MAX 1000
#define PIDS_MAX  512 /* named in the description, which readers take up to 8 KB of */

static void put(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=", name);
    for (; *value; value++) {
        if (*value == '\n' || *value == '\\')
            putc('\\', out);
        putc(*value == '\n' ? 'n' : *value, out);
    }
    putc('\n', out);
}

static int write_about(int dir_fd, const struct pb_store_options *o, const struct pb_procinfo *self)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    _cleanup_close_ int fd =
        openat(dir_fd, "about", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *out = copy < 0 ? NULL : fdopen(copy, "w");
    if (!out)
        return -errno;
    put(out, "release", PROBING_VERSION);
    fprintf(out, "pid=%d\nstart_time=%llu\nuid=%u\nprobed_since=%lld\n", (int)self->ns_pid,
            (unsigned long long)self->start_time, (unsigned)geteuid(), (long long)time(NULL));
    struct pb_profile_clocks now;
    pb_profile_clocks_now(&now);
    /* recorded_pid: the first one, under which the recording is listed. */
    fprintf(out, "recorded_pid=%d\nrecorded_pids=%d", (int)o->pids[0], (int)o->pids[0]);
    for (size_t i = 1; i < o->npids && i < PIDS_MAX; i++)
        fprintf(out, ",%d", (int)o->pids[i]);
    fprintf(out, "\nrate=%.17g\nclock=%s\n", o->rate, o->clock ? o->clock : "wall");
    fprintf(out, "shown=%d\n", o->shown);
    fprintf(out, "clock_monotonic=%llu\nclock_boot=%llu\nclock_utc=%lld\n",
            (unsigned long long)now.monotonic_ns, (unsigned long long)now.boot_ns, (long long)now.utc_ns);
    put(out, "command", o->command);
    int r = ferror(out) ? -EIO : 0;
    if (fclose(out) != 0 && r == 0)
        r = -errno;
    /* Locked after the close: closing any descriptor of a file releases its locks. */
    if (r == 0 && fcntl(fd, F_SETLK, &lock) < 0)
        r = -errno;
    return r < 0 ? r : pb_take_fd(fd);
}

static int make_in(const char *root, const struct pb_store_options *o, struct pb_store_dir *ret)
{
    struct pb_store_dir d = {.fd = -1, .about_fd = -1};
    struct pb_procinfo self, of;
    char user[200], name[112];

    int r = pb_procinfo_read(getpid(), &self, NULL);
    if (r == 0)
        r = pb_procinfo_read(o->pids[0], &of, NULL);
    if (r < 0)
        return r;
    _cleanup_close_ int user_fd = pb_rundir_open_user(root, user, sizeof(user));
    if (user_fd < 0)
        return user_fd;
    pb_rundir_collect(user_fd, PB_RUNDIR_KEEP_BYTES, PB_RUNDIR_KEEP_S);
    for (int n = 0; n < NAMES_MAX; n++) {
        int len =
            snprintf(name, sizeof(name), "%llu-%d-%llu" PB_RUNDIR_OF "%d-%llu",
                     (unsigned long long)self.pid_ns, (int)self.ns_pid, (unsigned long long)self.start_time,
                     (int)o->pids[0], (unsigned long long)of.start_time);
        if (n)
            snprintf(name + len, sizeof(name) - (size_t)len, ".%d", n);
        if (mkdirat(user_fd, name, 0700) == 0)
            break;
        if (errno != EEXIST || n + 1 == NAMES_MAX)
            return -errno;
    }
    snprintf(d.path, sizeof(d.path), "%.140s/%.111s", user, name);
    d.fd = openat(user_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d.fd < 0)
        return -errno;
    d.about_fd = write_about(d.fd, o, &self);
    if (d.about_fd < 0) {
        r = d.about_fd;
        pb_rundir_remove(user_fd, name);
        pb_store_dir_done(&d);
        return r;
    }
    *ret = d;
    return 0;
}

int pb_store_dir_make(const struct pb_store_options *options, struct pb_store_dir *ret, struct pb_err *err)
{
    static const char *const usual[] = {"/tmp", "/var/tmp"};
    uint64_t want = options->bound ? options->bound : BOUND;
    const char *own = getenv("PROBING_DIR");
    struct pb_copy_place place;
    int r = -ENOENT;

    if (own && *own == '/') {
        r = make_in(own, options, ret);
        if (r == 0)
            ret->bound = want;
        return r < 0 ? pb_fail(err, r, "no recording can be made in %s: %s", own, strerror(-r)) : 0;
    }
    pb_arena_place("/dev/shm", NULL, want, &place);
    if (place.kind == PB_PLACE_SHM && (r = make_in("/dev/shm", options, ret)) == 0)
        ret->bound = place.bound;
    for (size_t i = 0; r < 0 && i < sizeof(usual) / sizeof(usual[0]); i++) {
        pb_arena_place("", usual[i], want, &place);
        if (place.kind == PB_PLACE_RUN_DIR && (r = make_in(usual[i], options, ret)) == 0)
            ret->bound = place.bound;
    }
    if (r < 0)
        return pb_fail(
            err, r,
            "no recording can be made in /dev/shm, /tmp or /var/tmp: %s (PROBING_DIR names another "
            "folder)",
            r == -ENOENT ? "they are full or read-only" : strerror(-r));
    return 0;
}

void pb_store_dir_done(struct pb_store_dir *d)
{
    if (d->about_fd >= 0)
        close(d->about_fd);
    if (d->fd >= 0)
        close(d->fd);
    d->fd = d->about_fd = -1;
}
