/* arena: making and closing an arena, its bound, and what becomes of it in a child of fork.
 *
 * The rows are elsewhere: tables.c defines them, append.c and cells.c write them, segment.c and space.c give
 * them room, tend.c works ahead. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "table/writer.h"

/* Old C libraries and kernel headers lack these; the kernel says EINVAL or ENOSYS where it does. */
#ifndef TMPFS_MAGIC
#define TMPFS_MAGIC 0x01021994
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC       1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS   1033
#define F_SEAL_SHRINK 2
#endif

#define DEFAULT_BOUND   (UINT64_C(64) << 20)
#define DEFAULT_SEGMENT (256u << 10)
#define DEFAULT_SCHEMAS (1u << 20)

static int open_file(int dirfd, const char *name)
{
    if (dirfd != PB_ARENA_MEMFD) {
        int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        return fd < 0 ? -errno : fd;
    }
    /* The system call, because a libc of 2017 has no wrapper. Sealed against shrinking: a file cut under the
     * mapping would kill the host. */
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

static ssize_t slurp(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buffer, size - 1);
    close(fd);
    buffer[n > 0 ? n : 0] = 0;
    return n;
}

/* Field 22 of /proc/self/stat; the name before it may hold spaces and parentheses. */
static uint64_t start_time(void)
{
    char text[1024];

    if (slurp("/proc/self/stat", text, sizeof(text)) <= 0)
        return 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static void read_boot_id(unsigned char id[16])
{
    char text[64];
    int n = 0;

    memset(id, 0, 16);
    if (slurp("/proc/sys/kernel/random/boot_id", text, sizeof(text)) <= 0)
        return;
    for (const char *p = text; *p && n < 32; p++) {
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
        if (digit < 0)
            continue;
        id[n / 2] = (unsigned char)(id[n / 2] << 4 | digit);
        n++;
    }
}

static int check_options(const struct pb_arena_options *given, struct pb_arena_options *o)
{
    if (given)
        *o = *given;
    if (!o->bound)
        o->bound = DEFAULT_BOUND;
    if (!o->segment_size)
        o->segment_size = DEFAULT_SEGMENT;
    if (!o->max_tables)
        o->max_tables = PB_MAX_TABLES;
    if (!o->schema_bytes)
        o->schema_bytes = DEFAULT_SCHEMAS;
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
    if (o->segment_size % PB_MIN_SEGMENT || o->segment_size > PB_MAX_SEGMENT ||
        o->max_tables > PB_MAX_TABLES || (uint64_t)o->segment_size * PB_EXTENT_SLOTS % page)
        return -EINVAL;
    return 0;
}

static uint64_t page_up(uint64_t n)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

/* Reserves and maps the header and writes everything of it but the magic. */
static int make_header(struct pb_arena *a, const struct pb_arena_options *o)
{
    uint64_t tables = 4096, schemas = page_up(tables + o->max_tables * sizeof(struct pb_file_table));

    a->segments_offset = page_up(schemas + o->schema_bytes);
    if (ftruncate(a->fd, (off_t)a->segments_offset) < 0)
        return -errno;
    int r = pb_reserve(a->fd, 0, schemas);
    if (r < 0)
        return r;
    void *at = mmap(NULL, a->segments_offset, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    if (at == MAP_FAILED)
        return -errno;

    struct pb_file_header *h = a->header = at;
    atomic_store(&a->header_used, schemas);
    h->major = PB_ARENA_MAJOR;
    h->minor = PB_ARENA_MINOR;
    h->header_size = sizeof(*h);
    h->segment_size = o->segment_size;
    h->max_tables = o->max_tables;
    h->tables_offset = tables;
    h->schemas_offset = schemas;
    h->schemas_size = a->segments_offset - schemas;
    h->segments_offset = a->segments_offset;
    h->pid = (uint32_t)getpid();
    h->start_time = start_time();
    h->mono_ns = pb_clock_mono();
    h->real_ns = pb_clock_real();
    read_boot_id(h->boot_id);
    h->bound = o->bound;
    h->next_serial = 1;
    return 0;
}

static int make_control(struct pb_arena *a)
{
    void *at = mmap(NULL, sizeof(*a->control), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return -errno;
    /* A child of fork finds zeros: no segment is open, no table has an arena. Where the kernel is too old,
     * pb_arena_after_fork_in_child does it. */
    (void)madvise(at, sizeof(*a->control), MADV_WIPEONFORK);
    /* Spread thinly on purpose: a huge page would make megabytes of it resident. */
    (void)madvise(at, sizeof(*a->control), MADV_NOHUGEPAGE);
    a->control = at;
    atomic_store(&a->control->ready_target, 2);
    atomic_store(&a->control->armed, 1);
    atomic_store(&a->control->live, 1);
    return 0;
}

static int set_up(struct pb_arena *a, const struct pb_arena_options *o)
{
    struct statfs fs;
    uint32_t slot;

    a->segment_size = o->segment_size;
    a->max_slots = PB_MAX_SLOTS;
    a->pages_stay = fstatfs(a->fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
    int r = make_header(a, o);
    if (r == 0)
        r = make_control(a);
    if (r == 0)
        r = pb_slot_grow(a, &slot);
    if (r < 0)
        return r;
    pb_slot_give(a, slot, PB_SPACE_FREE);
    uint64_t magic;
    memcpy(&magic, PB_ARENA_MAGIC, sizeof(magic));
    __atomic_store_n((uint64_t *)(void *)a->header->magic, magic, __ATOMIC_RELEASE);
    return 0;
}

static int open_above(int fd, int lowest)
{
    if (fd < 0 || fd >= lowest)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest), r = -errno;
    close(fd);
    return moved < 0 ? r : moved;
}

int pb_arena_create(int dirfd, const char *name, const struct pb_arena_options *options,
                    struct pb_arena **ret)
{
    struct pb_arena_options o = {0};
    int r = check_options(options, &o);
    if (r < 0)
        return r;

    struct pb_arena *a =
        mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a == MAP_FAILED)
        return -errno;
    a->wake = o.wake;
    a->fd_thread = o.fd_of_creator ? (pid_t)syscall(SYS_gettid) : 0;
    a->fd = open_above(open_file(dirfd, name), o.fd_floor);
    if (a->fd < 0) {
        r = a->fd;
        munmap(a, sizeof(*a));
        return r;
    }
    r = set_up(a, &o);
    if (r < 0) {
        if (dirfd != PB_ARENA_MEMFD)
            unlinkat(dirfd, name, 0);
        pb_arena_close(a);
        return r;
    }
    *ret = a;
    return 0;
}

void pb_arena_close(struct pb_arena *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < PB_MAX_EXTENTS; i++)
        if (atomic_load(&a->extents[i]))
            munmap(atomic_load(&a->extents[i]), (size_t)a->segment_size * PB_EXTENT_SLOTS);
    if (a->header)
        munmap(a->header, a->segments_offset);
    if (a->control)
        munmap(a->control, sizeof(*a->control));
    if (a->fd >= 0)
        close(a->fd);
    munmap(a, sizeof(*a));
}

int pb_arena_fd(const struct pb_arena *a)
{
    return a->fd;
}

int pb_arena_release_fd(struct pb_arena *a)
{
    int fd = a->fd;

    a->fd = -1;
    return fd;
}

void pb_arena_set_bound(struct pb_arena *a, uint64_t bytes)
{
    if (atomic_load(&a->control->live))
        __atomic_store_n(&a->header->bound, bytes, __ATOMIC_RELAXED);
}

uint64_t pb_arena_bound(const struct pb_arena *a)
{
    return __atomic_load_n(&a->header->bound, __ATOMIC_RELAXED);
}

uint64_t pb_arena_used(const struct pb_arena *a)
{
    return atomic_load(&a->header_used) + (uint64_t)atomic_load(&a->control->used) * a->segment_size;
}

void pb_arena_after_fork_in_child(struct pb_arena *a)
{
    madvise(a->control, sizeof(*a->control), MADV_DONTNEED);
}
