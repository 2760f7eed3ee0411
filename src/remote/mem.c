/* mem: see mem.h. */
#include "remote/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/procfs.h"

static struct iovec remote(uint64_t addr, size_t len)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)addr, .iov_len = len};
}

/* The second way: some containers' seccomp profiles forbid process_vm_* and allow /proc/PID/mem. */
static ssize_t copy_through_file(pid_t pid, int flags, uint64_t addr, void *buf, size_t len)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/mem", pid);
    _cleanup_close_ int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    ssize_t n = flags == O_RDONLY ? pread(fd, buf, len, (off_t)addr) : pwrite(fd, buf, len, (off_t)addr);
    if (n < 0)
        return errno == EIO ? -EFAULT : -errno;
    return n;
}

ssize_t pb_mem_read_some(pid_t pid, uint64_t addr, void *buf, size_t len)
{
    struct iovec local = {buf, len}, there = remote(addr, len);
    ssize_t n = process_vm_readv(pid, &local, 1, &there, 1, 0);
    if (n < 0 && errno == ESRCH) { /* it is gone, or only its main thread is */
        pid_t living = pb_proc_living(pid);
        n = living == pid ? -1 : process_vm_readv(living, &local, 1, &there, 1, 0);
        errno = n < 0 && living == pid ? ESRCH : errno;
    }
    if (n < 0 && (errno == ENOSYS || errno == EPERM))
        return copy_through_file(pid, O_RDONLY, addr, buf, len);
    return n < 0 ? -errno : n;
}

int pb_mem_read(pid_t pid, uint64_t addr, void *buf, size_t len)
{
    ssize_t n = pb_mem_read_some(pid, addr, buf, len);
    if (n < 0)
        return (int)n;
    return (size_t)n == len ? 0 : -EFAULT;
}

int pb_mem_write(pid_t pid, uint64_t addr, const void *buf, size_t len)
{
    struct iovec local = {(void *)(uintptr_t)buf, len}, there = remote(addr, len);
    ssize_t n = process_vm_writev(pid, &local, 1, &there, 1, 0);
    if (n < 0 && (errno == ENOSYS || errno == EPERM))
        n = copy_through_file(pid, O_WRONLY, addr, (void *)(uintptr_t)buf, len);
    else if (n < 0)
        n = -errno;
    if (n < 0)
        return (int)n;
    return (size_t)n == len ? 0 : -EFAULT;
}
