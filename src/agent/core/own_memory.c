/* own_memory: see own_memory.h. */
#include "agent/core/own_memory.h"

#include "agent/core/small_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_bool was_filtered; /* no filter goes away */

/* Filters that kill for process_vm_readv are not rare, since debuggers use it, and the agent cannot read
 * filters. One may be added at any time, so this is checked each time. */
static bool is_filtered_by_file(void)
{
    char text[4096];

    if (pb_file_read("/proc/thread-self/status", text, sizeof(text)) <= 0 &&
        pb_file_read("/proc/self/status", text, sizeof(text)) <= 0)
        return true;
    const char *line = strstr(text, "\nSeccomp:\t");
    if (!line || line[10] == '0')
        return false;
    was_filtered = true;
    return true;
}

/* Without a file. Programs name their threads with prctl, so filters allow it. */
static bool is_filtered_by_call(void)
{
    if (prctl(PR_GET_SECCOMP, 0ul, 0ul, 0ul, 0ul) == 0)
        return false;
    was_filtered = true;
    return true;
}

int pb_own_memory_begin(struct pb_own_memory *ret, bool may_open)
{
    *ret = (struct pb_own_memory){.may_open = may_open, .file = -1};
    ret->is_filtered = was_filtered || (may_open ? is_filtered_by_file() : is_filtered_by_call());
    return ret->is_filtered && !may_open ? -EPERM : 0;
}

/* The file is closed by end, so that no fork inherits it for long. */
static ssize_t read_by_file(struct pb_own_memory *memory, const struct iovec *pieces, size_t n, char *to)
{
    size_t done = 0;

    if (!memory->may_open)
        return -EPERM;
    if (memory->file < 0)
        memory->file = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (memory->file < 0)
        return -errno;
    for (size_t i = 0; i < n; i++) {
        ssize_t got = pread(memory->file, to + done, pieces[i].iov_len, (off_t)(uintptr_t)pieces[i].iov_base);
        done += got > 0 ? (size_t)got : 0;
        if (got < (ssize_t)pieces[i].iov_len)
            break;
    }
    return done ? (ssize_t)done : -EFAULT;
}

ssize_t pb_own_memory_read_more(struct pb_own_memory *memory, const struct iovec *pieces, size_t n, void *to)
{
    struct iovec here = {to, 0};

    if (memory->is_filtered)
        return read_by_file(memory, pieces, n, to);
    for (size_t i = 0; i < n; i++)
        here.iov_len += pieces[i].iov_len;
    ssize_t got = syscall(SYS_process_vm_readv, getpid(), &here, 1ul, pieces, n, 0ul);
    if (got >= 0)
        return got;
    return errno == ENOSYS || errno == EPERM ? read_by_file(memory, pieces, n, to) : -errno;
}

void pb_own_memory_end(struct pb_own_memory *memory)
{
    if (memory->file >= 0)
        close(memory->file);
    memory->file = -1;
}

ssize_t pb_own_memory_read(const struct iovec *pieces, size_t n, void *to)
{
    struct pb_own_memory memory;

    pb_own_memory_begin(&memory, true);
    ssize_t got = pb_own_memory_read_more(&memory, pieces, n, to);
    pb_own_memory_end(&memory);
    return got;
}
