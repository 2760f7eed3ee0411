/* arena: making and closing an arena, its bound, and what becomes of it in a child of fork.
 *
 * The rows are elsewhere: tables.c defines them, append.c and cells.c write them, segment.c and space.c give
 * them room, tend.c works ahead. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "table/writer.h"

/* Missing from old C libraries and kernel headers; an old kernel returns EINVAL. */
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Rounds of copying when the arena is closed: another process may truncate the file again and again. */
enum { MAX_TURNS = 10000 };

#define DEFAULT_BOUND   (UINT64_C(64) << 20)
#define DEFAULT_SEGMENT (256u << 10)
#define DEFAULT_SCHEMAS (1u << 20)

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

static uint64_t page_up(const struct pb_arena *a, uint64_t n)
{
    return (n + a->page - 1) / a->page * a->page;
}

/* The parts of the header that never change, and the offsets. */
static void plan_header(struct pb_arena *a, const struct pb_arena_options *o)
{
    struct pb_file_header *h = &a->about;

    memcpy(h->magic, PB_ARENA_MAGIC, sizeof(h->magic));
    h->major = PB_ARENA_MAJOR;
    h->minor = PB_ARENA_MINOR;
    h->header_size = sizeof(*h);
    h->segment_size = a->segment_size = o->segment_size;
    h->max_tables = o->max_tables;
    h->tables_offset = 4096;
    h->schemas_offset = page_up(a, h->tables_offset + o->max_tables * sizeof(struct pb_file_table));
    h->segments_offset = a->segments_offset = page_up(a, h->schemas_offset + o->schema_bytes);
    h->schemas_size = a->segments_offset - h->schemas_offset;
    h->pid = (uint32_t)getpid();
    h->start_time = start_time();
    pb_clock_both(&h->mono_ns, &h->real_ns);
    read_boot_id(h->boot_id);
    atomic_store(&a->bound, o->bound);
}

/* Writes everything of the header but the magic. */
static int make_header(struct pb_arena *a)
{
    int r = pb_memory_reserve(a, (char *)a->header, a->about.schemas_offset);
    if (r < 0)
        return r;
    atomic_store(&a->header_used, a->about.schemas_offset);
    *a->header = a->about;
    memset(a->header->magic, 0, sizeof(a->header->magic));
    a->header->bound = atomic_load(&a->bound);
    a->header->next_serial = 1;
    return 0;
}

static int make_control(struct pb_arena *a)
{
    void *at = pb_pages_map(sizeof(*a->control));
    a->schemas = pb_pages_map(a->about.schemas_size);
    if (!at || !a->schemas) {
        if (at)
            munmap(at, sizeof(*a->control));
        return -ENOMEM;
    }
    /* A child of fork finds zeros: no segment is open, no table has an arena. Where the kernel is too old,
     * pb_arena_after_fork_in_child does it. */
    (void)madvise(at, sizeof(*a->control), MADV_WIPEONFORK);
    /* Spread thinly on purpose: a huge page would make megabytes of it resident. */
    (void)madvise(at, sizeof(*a->control), MADV_NOHUGEPAGE);
    a->control = at;
    atomic_store(&a->control->next_serial, 1);
    atomic_store(&a->control->ready_target, 2);
    atomic_store(&a->control->armed, 1);
    atomic_store(&a->control->live, PB_LIFE_OPEN);
    return 0;
}

static int set_up(struct pb_arena *a, const char *name, const struct pb_arena_options *o)
{
    uint32_t slot;

    a->page = (uint32_t)sysconf(_SC_PAGESIZE);
    plan_header(a, o);
    int r = pb_memory_make(a, name);
    if (r == 0)
        r = make_header(a);
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

int pb_arena_create(int dirfd, const char *name, const struct pb_arena_options *options,
                    struct pb_arena **ret)
{
    struct pb_arena_options o = {0};
    int r = check_options(options, &o);
    if (r < 0)
        return r;

    struct pb_arena *a = pb_pages_map(sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->live.fd = -1;
    a->wake = o.wake;
    r = set_up(a, name, &o);
    if (r == 0 && dirfd != PB_ARENA_MEMFD)
        r = pb_mirror_make(a, dirfd, name);
    if (r < 0) {
        pb_arena_close(a);
        return r;
    }
    *ret = a;
    return 0;
}

static void finish_mirror(struct pb_arena *a)
{
    if (!a->mirror)
        return;
    for (int i = 0; i < MAX_TURNS && pb_arena_mirror(a) > 0; i++)
        ;
    pb_mirror_close(a);
    a->mirror = NULL;
}

/* pb_segment_settle for all segments. */
static bool settle_segments(struct pb_arena *a, bool close)
{
    uint32_t n = (uint32_t)atomic_load(&a->control->nslots);
    bool all = true;

    for (uint32_t slot = 0; slot < n && slot < a->max_slots; slot++)
        all = pb_segment_settle(a, &a->control->segments[slot], close) && all;
    return all;
}

void pb_arena_retire(struct pb_arena *a)
{
    atomic_store(&a->control->live, PB_LIFE_RETIRED);
    settle_segments(a, false);
}

int pb_arena_release(struct pb_arena *a)
{
    if (!a->header)
        return 1;
    /* No thread opens a segment any more: after this all are sealed, and the copy has every row. */
    if (atomic_load(&a->control->inside) || !settle_segments(a, false))
        return 0;
    finish_mirror(a);
    if (!settle_segments(a, true))
        return 0;
    pb_memory_unmap(a);
    a->header = NULL;
    pb_own_fd_close(&a->live);
    munmap(a->schemas, a->about.schemas_size);
    a->schemas = NULL;
    /* A thread that is about to reserve a row finds zeros, in whatever order it reads them. */
    madvise(a->control, sizeof(*a->control), MADV_DONTNEED);
    return 1;
}

void pb_arena_close(struct pb_arena *a)
{
    if (!a)
        return;
    finish_mirror(a);
    if (a->header)
        pb_memory_unmap(a);
    if (a->control)
        munmap(a->control, sizeof(*a->control));
    if (a->schemas)
        munmap(a->schemas, a->about.schemas_size);
    pb_own_fd_close(&a->live);
    munmap(a, sizeof(*a));
}

int pb_arena_fd(const struct pb_arena *a)
{
    return pb_own_fd_check(&a->live, NULL) ? a->live.fd : -1;
}

void pb_arena_set_bound(struct pb_arena *a, uint64_t bytes)
{
    if (!atomic_load(&a->control->live))
        return;
    atomic_store(&a->bound, bytes);
    __atomic_store_n(&a->header->bound, bytes, __ATOMIC_RELAXED);
}

uint64_t pb_arena_bound(const struct pb_arena *a)
{
    return atomic_load(&a->bound);
}

uint64_t pb_arena_used(const struct pb_arena *a)
{
    return atomic_load(&a->header_used) + (uint64_t)atomic_load(&a->control->used) * a->segment_size;
}

void pb_arena_after_fork_in_child(struct pb_arena *a)
{
    madvise(a->control, sizeof(*a->control), MADV_DONTNEED);
}

void pb_arena_close_fds(struct pb_arena *a)
{
    pb_own_fd_close(&a->live);
    if (a->mirror)
        pb_mirror_close(a);
}
