/* own_memory: see own_memory.h. */
#include "agent/core/own_memory.h"

#include "agent/core/small_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Filters that kill for process_vm_readv are not rare, since debuggers use it, and the agent cannot read
 * filters. One may be added at any time, so this is checked each time. */
bool pb_own_memory_is_filtered(void)
{
    char text[4096];

    if (pb_file_read("/proc/thread-self/status", text, sizeof(text)) <= 0 &&
        pb_file_read("/proc/self/status", text, sizeof(text)) <= 0)
        return true;
    const char *line = strstr(text, "\nSeccomp:\t");
    return line && line[10] != '0';
}

/* The file is opened and closed each time, so that no fork inherits it. */
static ssize_t read_by_file(const struct iovec *pieces, size_t n, char *to)
{
    size_t done = 0;

    int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (size_t i = 0; i < n; i++) {
        ssize_t got = pread(fd, to + done, pieces[i].iov_len, (off_t)(uintptr_t)pieces[i].iov_base);
        done += got > 0 ? (size_t)got : 0;
        if (got < (ssize_t)pieces[i].iov_len)
            break;
    }
    close(fd);
    return done ? (ssize_t)done : -EFAULT;
}

ssize_t pb_own_memory_read_as(bool is_filtered, const struct iovec *pieces, size_t n, void *to)
{
    struct iovec here = {to, 0};

    if (is_filtered)
        return read_by_file(pieces, n, to);
    for (size_t i = 0; i < n; i++)
        here.iov_len += pieces[i].iov_len;
    ssize_t got = syscall(SYS_process_vm_readv, getpid(), &here, 1ul, pieces, n, 0ul);
    if (got >= 0)
        return got;
    return errno == ENOSYS || errno == EPERM ? read_by_file(pieces, n, to) : -errno;
}

ssize_t pb_own_memory_read(const struct iovec *pieces, size_t n, void *to)
{
    return pb_own_memory_read_as(pb_own_memory_is_filtered(), pieces, n, to);
}
