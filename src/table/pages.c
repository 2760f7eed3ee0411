/* pages: see pages.h. Signal-safe throughout. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "table/pages.h"
#include "table/system_calls.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

enum { PAGE_MOST = 65536 }; /* the largest page of any processor that we build for */

static void *map(size_t size, int flags, int fd)
{
    void *at = mmap(NULL, size, PROT_NONE, flags, fd, 0);

    if (at == MAP_FAILED)
        return NULL;
    (void)munlock(at, size);
    if (mprotect(at, size, PROT_READ | PROT_WRITE) < 0) {
        int saved = errno;
        munmap(at, size);
        errno = saved;
        return NULL;
    }
    return at;
}

void *pb_pages_map(size_t size)
{
    return map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

void *pb_pages_map_shared(size_t size, int fd)
{
    return map(size, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, fd);
}

struct pb_unlocked pb_pages_free_stack(size_t from, size_t to)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0) / PAGE_MOST * PAGE_MOST;
    struct pb_unlocked unlocked = {(char *)(here - to), to - from};

    /* For a stack, EINVAL means that the memory is locked. */
    if (madvise(unlocked.at, unlocked.size, MADV_DONTNEED) == 0 || errno != EINVAL ||
        munlock(unlocked.at, unlocked.size) < 0) {
        unlocked.at = NULL;
        return unlocked;
    }
    (void)madvise(unlocked.at, unlocked.size, MADV_DONTNEED);
    return unlocked;
}

void pb_pages_keep_stack(const struct pb_unlocked *unlocked)
{
    if (!unlocked->at)
        return;
    /* Locked on use: filling it now would waste memory. Before Linux 4.4 all of it is locked at once. */
    (void)madvise(unlocked->at, unlocked->size, MADV_DONTNEED);
    if (syscall(SYS_mlock2, unlocked->at, unlocked->size, MLOCK_ONFAULT) < 0 && errno == ENOSYS)
        (void)mlock(unlocked->at, unlocked->size);
}
