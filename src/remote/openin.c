/* openin: see openin.h. */
#include "remote/openin.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

int pb_reopen_regular(int path_fd, uint64_t inode)
{
    struct stat st;
    char path[32];
    if (fstat(path_fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || (inode && st.st_ino != inode))
        return -ESTALE;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int pb_open_regular(int root_fd, const char *path, uint64_t inode)
{
    struct open_how how = {
        .flags = O_PATH | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    _cleanup_close_ int fd = (int)syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
    return fd < 0 ? -errno : pb_reopen_regular(fd, inode);
}

static int open_link(const char *path)
{
    _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
    return fd < 0 ? -errno : pb_reopen_regular(fd, 0);
}

int pb_open_mapped(pid_t pid, uint64_t start, uint64_t end)
{
    char path[80];
    snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)pid, start, end);
    return open_link(path);
}

int pb_open_program(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    return open_link(path);
}

int pb_open_in_root(pid_t pid, const char *path, uint64_t inode)
{
    char name[32];
    snprintf(name, sizeof(name), "/proc/%d/root", (int)pid);
    _cleanup_close_ int root = open(pid ? name : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? -errno : pb_open_regular(root, path, inode);
}
