/* memory: the shared memory of an arena, and the arena's descriptors.
 *
 * The memory is a memfd without a path, sealed against any change of its size, so that no access to the
 * mapping raises SIGBUS. After mapping, the process keeps no writable descriptor of it: the mapping grows by
 * mremap, pages are made and given back by madvise. So a program that closes unknown descriptors and opens
 * files under their numbers cannot have rows written into them, and a reader that gets the descriptor can
 * only read. Signal-safe throughout. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "table/writer.h"

/* Missing from old C libraries and kernel headers; an old kernel returns EINVAL or ENOSYS. */
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC       1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS   1033
#define F_SEAL_SEAL   1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW   4
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MREMAP_MAYMOVE
#define MREMAP_MAYMOVE 1
#endif

enum { HIGH_FD = 512 };

/* --- descriptors ------------------------------------------------------------------------------------ */

bool pb_own_fd_check(const struct pb_own_fd *own, struct stat *ret)
{
    struct stat st;

    if (own->fd < 0 || fstat(own->fd, &st) < 0 || st.st_dev != own->dev || st.st_ino != own->ino)
        return false;
    if (ret)
        *ret = st;
    return true;
}

void pb_own_fd_close(struct pb_own_fd *own)
{
    if (pb_own_fd_check(own, NULL))
        close(own->fd);
    own->fd = -1;
}

int pb_own_fd_keep(int fd, struct pb_own_fd *ret)
{
    struct rlimit limit;
    struct stat st;
    int floor = HIGH_FD;

    /* The kernel gives out the lowest free number: a program that has closed our descriptor reuses this one
     * last. */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 2 < HIGH_FD)
        floor = (int)(limit.rlim_cur / 2);
    int high = fcntl(fd, F_DUPFD_CLOEXEC, floor);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (fstat(fd, &st) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    *ret = (struct pb_own_fd){.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
    return 0;
}

/* --- making it -------------------------------------------------------------------------------------- */

/* Appends the number to dir; snprintf is not signal-safe. */
static void name_fd(char *to, const char *dir, int fd)
{
    char digits[12];
    int n = 0;

    size_t length = strlen(dir);
    memcpy(to, dir, length);
    do
        digits[n++] = (char)('0' + fd % 10);
    while ((fd /= 10) > 0);
    for (int i = 0; i < n; i++)
        to[length + (size_t)i] = digits[n - 1 - i];
    to[length + (size_t)n] = '\0';
}

/* Opens the same file read-only. Without /proc the writable descriptor stays; the reader must then open it
 * anew. */
static int make_read_only(int fd)
{
    /* The thread may have a descriptor table of its own; kernels before 3.17 know only the process's. */
    static const char *const dirs[] = {"/proc/thread-self/fd/", "/proc/self/fd/"};
    char path[48];
    struct stat ours, its;

    for (int i = 0; i < 2 && fstat(fd, &ours) == 0; i++) {
        name_fd(path, dirs[i], fd);
        int read_only = open(path, O_RDONLY | O_CLOEXEC);
        if (read_only >= 0 && fstat(read_only, &its) == 0 && its.st_dev == ours.st_dev &&
            its.st_ino == ours.st_ino) {
            close(fd);
            return read_only;
        }
        if (read_only >= 0)
            close(read_only);
    }
    return fd;
}

static uint64_t size_of(const struct pb_arena *a)
{
    return a->segments_offset + (uint64_t)a->max_slots * a->segment_size;
}

/* RLIMIT_FSIZE holds for a memfd too, and exceeding it raises SIGXFSZ, which kills. */
static int fit_limit(struct pb_arena *a)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= size_of(a))
        return 0;
    if (limit.rlim_cur < a->segments_offset + (uint64_t)PB_MIN_SLOTS * a->segment_size)
        return -EFBIG;
    a->max_slots = (uint32_t)((limit.rlim_cur - a->segments_offset) / a->segment_size);
    return 0;
}

static int make_memfd(struct pb_arena *a, const char *name)
{
    /* A system call, because glibc before 2.27 has no wrapper. */
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    /* The mode keeps the read-only descriptor from being opened again for writing by mistake. No
     * F_SEAL_FUTURE_WRITE: with it the kernel refuses to give pages back when the bound is lowered. */
    if (ftruncate(fd, (off_t)size_of(a)) < 0 || fchmod(fd, 0400) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

/* Kept out of core dumps, and not in huge pages: one slot would take the memory of eight. */
static void advise_mapping(void *at, size_t size)
{
    (void)madvise(at, size, MADV_DONTDUMP);
    (void)madvise(at, size, MADV_NOHUGEPAGE);
}

static int map_first(struct pb_arena *a, int fd, uint64_t size)
{
    void *at = pb_pages_map_shared(size, fd);

    if (!at)
        return -errno;
    advise_mapping(at, size);
    a->header = at;
    return 0;
}

static uint64_t extent_size(const struct pb_arena *a)
{
    return (uint64_t)a->segment_size * PB_EXTENT_SLOTS;
}

/* Without a memfd (a seccomp filter, a kernel before 3.17): memory that only the mirror can show. All of it
 * is mapped at once, so it cannot grow above the present bound. */
static int make_anonymous(struct pb_arena *a)
{
    uint64_t slots = atomic_load(&a->bound) / a->segment_size + PB_MIN_SLOTS;

    slots = (slots + PB_EXTENT_SLOTS - 1) / PB_EXTENT_SLOTS * PB_EXTENT_SLOTS;
    a->max_slots = slots < PB_WRITER_SLOTS ? (uint32_t)slots : PB_WRITER_SLOTS;
    a->one_mapping = true;
    int r = map_first(a, -1, size_of(a));
    for (uint32_t i = 0; r == 0 && i < a->max_slots / PB_EXTENT_SLOTS; i++)
        atomic_store(&a->extents[i], (char *)a->header + a->segments_offset + i * extent_size(a));
    return r;
}

int pb_memory_make(struct pb_arena *a, const char *name)
{
    a->live.fd = -1;
    a->max_slots = PB_WRITER_SLOTS;
    int r = fit_limit(a), fd = r < 0 ? r : make_memfd(a, name);
    if (fd < 0)
        return make_anonymous(a);
    r = map_first(a, fd, a->segments_offset + extent_size(a));
    if (r < 0) {
        close(fd);
        return r;
    }
    atomic_store(&a->extents[0], (char *)a->header + a->segments_offset);
    return pb_own_fd_keep(make_read_only(fd), &a->live);
}

/* --- more of it ------------------------------------------------------------------------------------- */

int pb_memory_map(struct pb_arena *a, uint32_t extent)
{
    size_t page = a->page, size = extent_size(a);
    int saved = errno, r = 0;

    for (uint32_t i = 1; i <= extent && r == 0; i++) {
        char *none = NULL;
        if (atomic_load(&a->extents[i]))
            continue;
        /* An old size of 0 makes another mapping of the same memory, from that page on: the last page of the
         * extent before. */
        char *last = atomic_load(&a->extents[i - 1]) + size - page;
        char *at = mremap(last, 0, page + size, MREMAP_MAYMOVE);
        if (at == MAP_FAILED)
            r = -errno;
        else if (!atomic_compare_exchange_strong(&a->extents[i], &none, at + page))
            munmap(at, page + size);
    }
    errno = saved;
    return r;
}

void pb_memory_unmap(struct pb_arena *a)
{
    size_t page = a->page, size = extent_size(a);
    bool whole = a->one_mapping;

    for (size_t i = 1; i < PB_MAX_EXTENTS && !whole; i++)
        if (atomic_load(&a->extents[i]))
            munmap(atomic_load(&a->extents[i]) - page, size + page);
    if (a->header)
        munmap(a->header, whole ? size_of(a) : a->segments_offset + size);
    a->header = NULL;
}

/* Before Linux 5.14: a system call that touches each page and changes no bit. Without memory it fails with
 * EFAULT, where a plain access would raise SIGBUS. */
static int touch_pages(char *at, size_t length, size_t page)
{
    for (size_t i = 0; i < length; i += page)
        if (syscall(SYS_futex, at + i, FUTEX_WAKE_OP, 0, 0, at + i,
                    FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 1)) < 0)
            return -ENOMEM;
    return 0;
}

int pb_memory_reserve(const struct pb_arena *a, char *at, size_t length)
{
    size_t before = (uintptr_t)at % a->page; /* pages of 64 KB may hold several small segments */
    int saved = errno, r = 0;

    at -= before;
    length = (length + before + a->page - 1) / a->page * a->page;
    if (madvise(at, length, MADV_POPULATE_WRITE) < 0)
        r = errno == EINVAL ? touch_pages(at, length, a->page) : -ENOMEM;
    errno = saved;
    return r;
}

void pb_memory_give_back(char *at, size_t length)
{
    int saved = errno;

    (void)madvise(at, length, MADV_REMOVE);
    errno = saved;
}
