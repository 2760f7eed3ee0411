/* sandbox_files: replaces stat, access and the like for DuckDB: they are answered by opening the file.
 *
 * stat, access and readlink take paths that no filter can check, and Landlock allows them everywhere; so the
 * sandbox forbids them. These functions replace libc's for the library too (the worker exports them): a file
 * that may not be opened does not exist. They also work before the sandbox is entered.
 *
 * A process that writes can open nothing: its files are descriptors, which DuckDB opens by a name that open
 * below understands. */
#include "engine/worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Exported under libc's names. */
#define STANDS_FOR(name) __asm__(#name) __attribute__((visibility("default")))

struct stat;
int pb_file_open(const char *path, int flags, ...) STANDS_FOR(open);
int pb_file_open64(const char *path, int flags, ...) STANDS_FOR(open64);
int pb_file_access(const char *path, int mode) STANDS_FOR(access);
int pb_file_stat(const char *path, struct stat *ret) STANDS_FOR(stat);
int pb_file_xstat(int version, const char *path, struct stat *ret) STANDS_FOR(__xstat);
char *pb_file_realpath(const char *path, char *ret) STANDS_FOR(realpath);

static bool files_are_lent;

void pb_sandbox_lend_files(void)
{
    files_are_lent = true;
}

/* As libc's open; mode is used with O_CREAT only. */
static int open_path(const char *path, int flags, mode_t mode)
{
    const size_t n = sizeof(PB_SANDBOX_FILE) - 1;
    char *end;

    if (!files_are_lent || strncmp(path, PB_SANDBOX_FILE, n) != 0)
        return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    long fd = strtol(path + n, &end, 10);
    if (end == path + n || *end || fd < 0 || fd > INT_MAX) {
        errno = ENOENT;
        return -1;
    }
    return dup((int)fd);
}

int pb_file_open(const char *path, int flags, ...)
{
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_path(path, flags, mode);
}

int pb_file_open64(const char *path, int flags, ...)
{
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_path(path, flags, mode);
}

int pb_file_access(const char *path, int mode)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -1;
    close(fd);
    if (mode & (W_OK | X_OK))
        errno = EACCES;
    return mode & (W_OK | X_OK) ? -1 : 0;
}

int pb_file_stat(const char *path, struct stat *ret)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -1;
    long r = syscall(SYS_fstat, fd, ret);
    close(fd);
    return (int)r;
}

int pb_file_xstat(int version, const char *path, struct stat *ret)
{
    return pb_file_stat(path, ret);
}

/* Paths of the archive come from the broker, without links; one with ".." is refused. */
char *pb_file_realpath(const char *path, char *ret)
{
    if (path[0] != '/' || strstr(path, "/../") || strlen(path) >= PATH_MAX) {
        errno = EACCES;
        return NULL;
    }
    if (!ret)
        return strdup(path);
    return strcpy(ret, path);
}
