/* run: see run.h. */
#include "agent/core/run.h"

#include "agent/core/about.h"
#include "agent/core/fds.h"
#include "control/rundir.h"
#include "control/settings.h"
#include "table/arena.h"
#include "table/system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG       16
#define PIDFD_THREADS O_EXCL /* PIDFD_THREAD: Linux 6.9 */

static uint64_t max_memory_of(const struct pb_run_options *options)
{
    return (uint64_t)options->settings->at[PB_SET_MAX_MEMORY].number;
}

/* 32 hexadecimal digits. */
static int make_secret(char *ret)
{
    unsigned char bytes[16];

    if (syscall(SYS_getrandom, bytes, sizeof(bytes), 0) != sizeof(bytes)) /* no wrapper in glibc 2.17 */
        return -EIO;
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

/* Whether the run in that directory has ended by detach: it has no secret any more. */
static int is_ended(int user_fd, const char *name)
{
    struct stat st;
    char path[128];

    snprintf(path, sizeof(path), "%s/secret", name);
    return fstatat(user_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

/* The first free name: earlier ones belong to programs that this process ran before exec. The run of an agent
 * that was detached ends here. */
static int make_run_dir(int user_fd, const char *name, char *ret, size_t size)
{
    for (int n = 0; n < 1000; n++) {
        snprintf(ret, size, n ? "%s.%d" : "%s", name, n);
        if (is_ended(user_fd, ret))
            pb_rundir_remove(user_fd, ret);
        if (mkdirat(user_fd, ret, 0700) == 0)
            return openat(user_fd, ret, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (errno != EEXIST)
            return -errno;
    }
    return -EEXIST;
}

static int write_file(int dir_fd, const char *name, const char *text, int keep_open)
{
    size_t len = strlen(text);

    int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, len);
    int r = n < 0 ? -errno : (size_t)n < len ? -ENOSPC : 0;
    if (r < 0 || !keep_open) {
        close(fd);
        return r;
    }
    return fd;
}

static int listen_at(const struct sockaddr_un *address, socklen_t size)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)address, size) < 0 || listen(fd, BACKLOG) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    return pb_fd_keep(fd);
}

/* If the path is longer than a socket address may be, it is reached through its directory's descriptor: that
 * of this thread, whose table is not that of /proc/self. */
static int listen_in(const struct pb_run *run)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/thread-self/fd/%d/control", run->dir_fd);
    int r = listen_at(&address, sizeof(address));
    if (r == -ENOENT && /* Linux before 3.17, or no /proc */
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", run->dir) <
            (int)sizeof(address.sun_path))
        r = listen_at(&address, sizeof(address));
    return r;
}

/* Whether a tool can fetch a descriptor from the table of one thread on this kernel. */
static int kernel_has_thread_pidfds(void)
{
    int fd = (int)syscall(SYS_pidfd_open, syscall(SYS_gettid), PIDFD_THREADS);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* For kernels on which tools cannot fetch the door's descriptor. The name is no secret (/proc/net/unix has
 * it): a client's user is checked, and it must know the secret, as on every other way in. */
static void listen_abstract(struct pb_run *run)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char random[40];

    if (make_secret(random) < 0)
        return;
    snprintf(run->abstract, sizeof(run->abstract), "probing-%s", random);
    size_t len = strlen(run->abstract);
    memcpy(address.sun_path + 1, run->abstract, len);
    run->abstract_fd = listen_at(&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len));
    if (run->abstract_fd < 0) {
        run->abstract_fd = -1;
        run->abstract[0] = '\0';
    }
}

static int fill_dir(const struct pb_run_options *options, struct pb_run *run)
{
    /* A lock of the open file, not of the process: a program that opens and closes the file itself does not
     * release it. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char about[PB_ABOUT_SIZE];

    int r = write_file(run->dir_fd, "secret", run->secret, 0);
    if (r < 0)
        return r;
    pb_about_write(about, sizeof(about), options->host_pid, options->settings->at[PB_SET_REDACT].text);
    run->about_fd = pb_fd_keep(write_file(run->dir_fd, "about", about, 1));
    if (run->about_fd < 0)
        return run->about_fd;
    if (fcntl(run->about_fd, F_OFD_SETLK, &lock) < 0)
        return -errno;
    r = pb_run_keep_settings(run, options->settings);
    if (r < 0)
        return r;
    run->listen_fd = listen_in(run);
    return run->listen_fd < 0 ? run->listen_fd : 0;
}

static void close_fd(int *fd)
{
    pb_fd_close(*fd);
    *fd = -1;
}

void pb_run_close(struct pb_run *run)
{
    int *fds[] = {&run->dir_fd,  &run->about_fd, &run->listen_fd,
                  &run->door[0], &run->door[1],  &run->abstract_fd};

    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        close_fd(fds[i]);
}

/* Removes the directory and closes the files in it. */
static void remove_dir(struct pb_run *run)
{
    if (run->dir[0]) {
        int user_fd = open(run->root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (user_fd >= 0) {
            pb_rundir_remove(user_fd, strrchr(run->dir, '/') + 1);
            close(user_fd);
        }
        rmdir(run->root); /* succeeds only if it was the last run there */
    }
    close_fd(&run->dir_fd);
    close_fd(&run->about_fd);
    run->dir[0] = '\0';
}

static int try_root(const struct pb_run_options *options, const char *root, struct pb_run *run)
{
    char name[96], taken[112];

    int user_fd = pb_rundir_open_user(root, run->root, sizeof(run->root));
    if (user_fd < 0)
        return user_fd;
    pb_rundir_collect(user_fd, PB_RUNDIR_KEEP_BYTES, PB_RUNDIR_KEEP_S);
    pb_about_run_name(name, sizeof(name));
    run->dir_fd = pb_fd_keep(make_run_dir(user_fd, name, taken, sizeof(taken)));
    int r = run->dir_fd < 0 ? run->dir_fd : 0;
    if (r == 0 && snprintf(run->dir, sizeof(run->dir), "%s/%s", run->root, taken) >= (int)sizeof(run->dir))
        r = -ENAMETOOLONG;
    if (r == -ENAMETOOLONG) {
        unlinkat(user_fd, taken, AT_REMOVEDIR);
        run->dir[0] = '\0';
    }
    if (r == 0)
        r = fill_dir(options, run);
    close(user_fd);
    if (r < 0)
        remove_dir(run);
    return r;
}

/* The first usable place: shared memory if it has much room, else a disk. */
static int find_place(const struct pb_run_options *options, struct pb_run *run)
{
    const char *const disks[] = {"/tmp", "/var/tmp"};
    struct pb_copy_place place;
    int r = -ENOENT;

    pb_arena_place("/dev/shm", NULL, max_memory_of(options), &place);
    if (place.kind == PB_PLACE_SHM) {
        r = try_root(options, "/dev/shm", run);
        run->in_shm = r == 0;
    }
    for (size_t i = 0; r < 0 && i < sizeof(disks) / sizeof(disks[0]); i++) {
        pb_arena_place("", disks[i], max_memory_of(options), &place);
        if (place.kind == PB_PLACE_RUN_DIR)
            r = try_root(options, disks[i], run);
    }
    return r;
}

static int open_door(struct pb_run *run)
{
    int door[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, door) < 0)
        return -errno;
    run->door[0] = pb_fd_keep(door[0]);
    run->door[1] = pb_fd_keep(door[1]);
    return run->door[0] < 0 ? run->door[0] : run->door[1] < 0 ? run->door[1] : 0;
}

uint64_t pb_run_bound(const struct pb_run *run, uint64_t max_memory)
{
    struct stat st;

    if (run->dir_fd < 0)
        return max_memory;
    uint64_t held =
        fstatat(run->dir_fd, "arena", &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    uint64_t room = pb_arena_room(run->dir_fd, run->in_shm ? PB_PLACE_SHM : PB_PLACE_RUN_DIR, held);
    return max_memory < room ? max_memory : room;
}

int pb_run_open(const struct pb_run_options *options, struct pb_run *ret, char *why, size_t why_size)
{
    struct pb_run run = {.dir_fd = -1,
                         .about_fd = -1,
                         .listen_fd = -1,
                         .door = {-1, -1},
                         .abstract_fd = -1,
                         .bound = max_memory_of(options)};

    int r = make_secret(run.secret);
    if (r == 0)
        r = open_door(&run);
    if (r < 0) {
        snprintf(why, why_size, "no control socket can be made: %s", strerror(-r));
        pb_run_close(&run);
        return r;
    }
    int door_is_reached = kernel_has_thread_pidfds();
    if (!door_is_reached)
        listen_abstract(&run);
    r = options->dir ? try_root(options, options->dir, &run) : find_place(options, &run);
    if (r < 0 && options->dir)
        snprintf(why, why_size, "no run directory can be made in %s: %s", options->dir, strerror(-r));
    else if (r < 0 && !door_is_reached && run.abstract_fd < 0)
        snprintf(why, why_size,
                 "no tool could reach it: a socket was refused (%s), and other ways need Linux 6.9; stacks, "
                 "flame graphs and memory need no agent",
                 strerror(-r));
    else
        r = 0;
    if (r < 0) {
        pb_run_close(&run);
        return r;
    }
    run.bound = pb_run_bound(&run, max_memory_of(options));
    *ret = run; /* without a directory if none could be made: clients can use the door */
    return 0;
}

int pb_run_keep_settings(const struct pb_run *run, const struct pb_settings *settings)
{
    char text[PB_SETTINGS_FILE_SIZE];

    if (run->dir_fd < 0)
        return 0;
    pb_settings_write(settings, text, sizeof(text));
    unlinkat(run->dir_fd, PB_SETTINGS_FILE_NEW, 0); /* left by an attempt that failed */
    int r = write_file(run->dir_fd, PB_SETTINGS_FILE_NEW, text, 0);
    if (r == 0 && renameat(run->dir_fd, PB_SETTINGS_FILE_NEW, run->dir_fd, PB_SETTINGS_FILE) < 0)
        r = -errno;
    return r;
}

void pb_run_end(struct pb_run *run)
{
    /* By its path: dir_fd may be a descriptor of the program's by now. */
    int fd = run->dir[0] ? open(run->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;

    if (fd >= 0) {
        unlinkat(fd, "control", 0);
        unlinkat(fd, "secret", 0);
        close(fd);
    }
    close_fd(&run->dir_fd);
    close_fd(&run->about_fd);
    run->dir[0] = '\0';
    close_fd(&run->door[1]);
}

void pb_run_remove(struct pb_run *run)
{
    remove_dir(run);
    close_fd(&run->door[1]);
}
