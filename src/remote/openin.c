/* openin: see openin.h. */
#include "remote/openin.h"

#include <errno.h>
#include <fcntl.h>
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
