/* home: the folder of the user's service, with its pid, address and token. See service.h.
 *
 * Files: lock (has the pid, locked while the service runs), address, token, audit. All are 0600, in a
 * folder of mode 0700 of the user. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/own_folder.h"
#include "base/time.h"
#include "control/relay.h"
#include "control/rundir.h"
#include "serve/service.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { LOCK_MS = 2000, LOCK_AGAIN_MS = 20, ANSWER_MS = 500 };

static int open_folder(char ret[PB_SERVE_PATH])
{
    pb_own_folder_path(PB_SERVE_FOLDER, PB_SERVE_FOLDER, ret, PB_SERVE_PATH);
    return pb_rundir_open_own(ret);
}

static int read_small(int folder, const char *name, char *ret, size_t size)
{
    _cleanup_close_ int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    return n < 0 ? -errno : 0;
}

static int write_small(int folder, const char *name, const char *text)
{
    _cleanup_close_ int fd =
        openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t n = strlen(text);

    if (fd < 0)
        return -errno;
    return write(fd, text, n) == (ssize_t)n ? 0 : -EIO;
}

static bool is_entry(const struct dirent *e)
{
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

/* Moves subfolders up beside the folder, so that nesting may have any depth. */
static void take_apart(int top, const char *name, int *most)
{
    int fd = openat(top, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char up[32];

    for (struct dirent *e; dir && *most > 0 && (e = readdir(dir));)
        if (is_entry(e) && (*most)-- && unlinkat(fd, e->d_name, 0) < 0) {
            snprintf(up, sizeof(up), "up-%d", *most);
            (void)renameat(fd, e->d_name, top, up);
        }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    unlinkat(top, name, AT_REMOVEDIR);
}

void pb_home_remove(const char *folder)
{
    int most = 10000; /* a limit, since others wait; the next start of the service removes the rest */
    DIR *dir = opendir(folder);
    bool any = dir;

    /* Takes the folder away from another user, whose leftover process may still write there. */
    if (dir && fchown(dirfd(dir), geteuid(), getegid()) == 0)
        fchmod(dirfd(dir), 0700);
    while (any && most > 0) {
        any = false;
        rewinddir(dir);
        for (struct dirent *e; most > 0 && (e = readdir(dir));)
            if (is_entry(e)) {
                any = true;
                most--;
                if (unlinkat(dirfd(dir), e->d_name, 0) < 0)
                    take_apart(dirfd(dir), e->d_name, &most);
            }
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
}

/* Folders of commands of a service that was killed. */
static void remove_leftovers(const struct pb_service *s)
{
    char path[PB_SERVE_PATH + 300];
    DIR *dir = opendir(s->folder);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, "job-", 4) == 0) {
            snprintf(path, sizeof(path), "%s/%s", s->folder, e->d_name);
            pb_home_remove(path);
        }
    if (dir)
        closedir(dir);
}

/* 0: not written yet. */
static pid_t read_pid(int folder)
{
    char text[32];

    read_small(folder, "lock", text, sizeof(text));
    return (pid_t)strtol(text, NULL, 10);
}

/* Whether the service of this folder answers. */
static bool answers(int folder)
{
    static const char request[] = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    char byte;

    snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/socket", folder);
    return fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
           send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0 &&
           poll(&(struct pollfd){fd, POLLIN, 0}, 1, ANSWER_MS) > 0 && recv(fd, &byte, 1, 0) == 1;
}

/* A killed service holds the lock until the kernel has ended it, and the commands that it started for
 * requests hold it for a moment longer. The pid in the lock file proves nothing: it may be a zombie, or
 * reused. */
static int take_lock(int folder, int lock)
{
    uint64_t deadline = pb_now_ns() + LOCK_MS * PB_NS_PER_MS;

    while (flock(lock, LOCK_EX | LOCK_NB) < 0) {
        if (answers(folder))
            return -EEXIST;
        if (pb_now_ns() >= deadline)
            return -ETIMEDOUT;
        pb_sleep_ns(LOCK_AGAIN_MS * PB_NS_PER_MS);
    }
    return 0;
}

int pb_home_take(struct pb_service *s, struct pb_err *err)
{
    _cleanup_close_ int folder = open_folder(s->folder);
    char text[PB_SERVE_PATH] = "";

    if (folder < 0)
        return pb_fail(err, folder, "%s must be a folder of yours that others cannot enter: %s", s->folder,
                       strerror(-folder));
    int lock = openat(folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        return pb_fail(err, -errno, "%s/lock cannot be opened: %s", s->folder, strerror(errno));
    int r = take_lock(folder, lock);
    if (r < 0) {
        close(lock);
        read_small(folder, "address", text, sizeof(text));
        if (r == -ETIMEDOUT)
            return pb_fail(err, r,
                           "your service runs already and does not answer: process %d (kill -9 ends it)",
                           (int)read_pid(folder));
        return pb_fail(err, -EEXIST, "your service runs already: %s", text[0] ? text : "it is just starting");
    }
    snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(lock, 0) < 0 || pwrite(lock, text, strlen(text), 0) < 0)
        return pb_fail(err, -errno, "%s/lock cannot be written: %s", s->folder, strerror(errno));
    unlinkat(folder, "address", 0);
    remove_leftovers(s);
    s->audit = openat(folder, "audit", O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (s->audit < 0)
        return pb_fail(err, -errno, "%s/audit cannot be opened: %s", s->folder, strerror(errno));
    return 0; /* the lock stays open, and locked, until the process ends */
}

void pb_home_set_address(const struct pb_service *s, const char *address)
{
    char ignored[PB_SERVE_PATH];
    _cleanup_close_ int folder = open_folder(ignored);

    if (folder >= 0)
        write_small(folder, "address", address);
    (void)s;
}

void pb_home_leave(const struct pb_service *s)
{
    char path[PB_SERVE_PATH + 16];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", s->folder, i ? "socket" : "address");
        unlink(path);
    }
}

static bool is_token(const char *text)
{
    return strlen(text) == PB_GATE_TOKEN_SIZE - 1 &&
           strspn(text, "0123456789abcdef") == PB_GATE_TOKEN_SIZE - 1;
}

int pb_home_token(const struct pb_service *s, const char *file, char ret[PB_GATE_TOKEN_SIZE],
                  struct pb_err *err)
{
    char ignored[PB_SERVE_PATH], text[256];
    unsigned char bytes[32];
    struct stat st;
    _cleanup_close_ int folder = open_folder(ignored);

    int r = file ? read_small(AT_FDCWD, file, text, sizeof(text))
                 : read_small(folder, "token", text, sizeof(text));
    if (file && r < 0)
        return pb_fail(err, r, "%s cannot be read: %s", file, strerror(-r));
    if (file && (!is_token(text) || stat(file, &st) < 0 || st.st_mode & 077))
        return pb_fail(
            err, -EINVAL,
            "%s must be yours alone (chmod 600) and hold 64 hexadecimal digits (openssl rand -hex 32)", file);
    if (!is_token(text)) {
        if (syscall(SYS_getrandom, bytes, sizeof(bytes), 0) != sizeof(bytes))
            return pb_fail(err, -errno, "no random numbers can be had: %s", strerror(errno));
        for (size_t i = 0; i < sizeof(bytes); i++)
            snprintf(text + 2 * i, 3, "%02x", bytes[i]);
        r = write_small(folder, "token", text);
        if (r < 0)
            return pb_fail(err, r, "%s/token cannot be written: %s", s->folder, strerror(-r));
    }
    memcpy(ret, text, PB_GATE_TOKEN_SIZE);
    return 0;
}

int pb_home_read_pem(const char *path, char **ret, struct pb_err *err)
{
    FILE *file = path ? fopen(path, "re") : NULL;
    char text[65536];

    *ret = NULL;
    if (!path)
        return 0;
    size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    if (n)
        *ret = strdup(text);
    return *ret ? 0 : pb_fail(err, -EINVAL, "%s cannot be read", path);
}
