/* sandbox_files: what DuckDB asks about a file of the archive, answered by opening it.
 *
 * stat, access and readlink take paths that no filter can look at, and Landlock lets them through anywhere;
 * so the sandbox has none of them. These stand in the place of libc's for the library too (the worker exports
 * them): a file that may not be opened does not exist. Before the sandbox is entered they serve as well. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

struct stat;
EXPORTED int access(const char *path, int mode);
EXPORTED int stat(const char *path, struct stat *ret);
EXPORTED int __xstat(int version, const char *path, struct stat *ret);
EXPORTED char *realpath(const char *path, char *ret);

EXPORTED int access(const char *path, int mode)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -1;
    close(fd);
    if (mode & (W_OK | X_OK))
        errno = EACCES;
    return mode & (W_OK | X_OK) ? -1 : 0;
}

EXPORTED int stat(const char *path, struct stat *ret)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -1;
    long r = syscall(SYS_fstat, fd, ret);
    close(fd);
    return (int)r;
}

EXPORTED int __xstat(int version, const char *path, struct stat *ret)
{
    return stat(path, ret);
}

/* Paths of the archive come without links, from the broker; one that climbs is none of them. */
EXPORTED char *realpath(const char *path, char *ret)
{
    if (path[0] != '/' || strstr(path, "/../") || strlen(path) >= PATH_MAX) {
        errno = EACCES;
        return NULL;
    }
    if (!ret)
        return strdup(path);
    return strcpy(ret, path);
}
