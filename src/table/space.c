/* space: room in the arena's file, slot by slot, and its mapping.
 *
 * Space is reserved before it is touched, so that a full disk is an error and never a SIGBUS. Slots change
 * hands by one compare-and-swap of their `space` word. Signal-safe throughout. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "table/writer.h"

enum { FULL_PAUSE_NS = 100000000 }; /* a disk that was full is asked again after this */

static int write_zeros(int fd, uint64_t offset, uint64_t length)
{
    static const char zeros[4096];

    while (length > 0) {
        size_t n = length < sizeof(zeros) ? (size_t)length : sizeof(zeros);
        ssize_t done = pwrite(fd, zeros, n, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        if (done == 0)
            return -ENOSPC;
        offset += (uint64_t)done;
        length -= (uint64_t)done;
    }
    return 0;
}

int pb_reserve(int fd, uint64_t offset, uint64_t length)
{
    struct rlimit limit;
    int saved = errno, r;

    /* Beyond RLIMIT_FSIZE the kernel would send SIGXFSZ, whose default kills the host. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        offset + length > limit.rlim_cur)
        return -EFBIG;
    do
        r = fallocate(fd, 0, (off_t)offset, (off_t)length) < 0 ? -errno : 0;
    while (r == -EINTR);
    if (r == -EOPNOTSUPP || r == -ENOSYS)
        r = write_zeros(fd, offset, length);
    errno = saved;
    return r;
}

uint32_t pb_slot_limit(const struct pb_arena *a)
{
    uint64_t bound = __atomic_load_n(&a->header->bound, __ATOMIC_RELAXED),
             header = atomic_load(&a->header_used);
    uint64_t n = bound > header ? (bound - header) / a->segment_size : 0;

    if (n < PB_MIN_SLOTS)
        return PB_MIN_SLOTS;
    return n < a->max_slots ? (uint32_t)n : a->max_slots;
}

static uint64_t slot_offset(const struct pb_arena *a, uint32_t slot)
{
    return a->segments_offset + (uint64_t)slot * a->segment_size;
}

/* Maps the extent that holds the slot. */
static int map_slot(struct pb_arena *a, uint32_t slot)
{
    _Atomic(char *) *extent = &a->extents[slot / PB_EXTENT_SLOTS];
    size_t size = (size_t)a->segment_size * PB_EXTENT_SLOTS;
    char *base = atomic_load(extent), *none = NULL;

    if (!base) {
        int saved = errno;
        off_t offset = (off_t)slot_offset(a, slot / PB_EXTENT_SLOTS * PB_EXTENT_SLOTS);
        base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, offset);
        if (base == MAP_FAILED) {
            int r = -errno;
            errno = saved;
            return r;
        }
        if (!atomic_compare_exchange_strong(extent, &none, base)) {
            munmap(base, size);
            base = none;
        }
    }
    a->control->segments[slot].base = base + (size_t)(slot % PB_EXTENT_SLOTS) * a->segment_size;
    return 0;
}

/* Takes the lowest slot from `slot` on without space; the caller has counted it in `used`. */
static int take_hole(struct pb_arena *a, uint32_t slot, uint32_t *ret)
{
    for (; slot < a->max_slots; slot++) {
        uint32_t hole = PB_SPACE_HOLE;
        if (atomic_load_explicit(&a->control->segments[slot].space, memory_order_relaxed) == hole &&
            atomic_compare_exchange_strong(&a->control->segments[slot].space, &hole, PB_SPACE_BUSY)) {
            *ret = slot;
            return 0;
        }
    }
    return -ENOSPC;
}

static void raise_nslots(struct pb_arena *a, uint64_t n)
{
    uint64_t old = __atomic_load_n(&a->header->nslots, __ATOMIC_RELAXED);
    while (old < n && !__atomic_compare_exchange_n(&a->header->nslots, &old, n, false, __ATOMIC_RELEASE,
                                                   __ATOMIC_RELAXED))
        ;
}

int pb_slot_grow(struct pb_arena *a, uint32_t *ret)
{
    struct pb_control *c = a->control;
    uint32_t used = atomic_load(&c->used), slot;

    if (!pb_arena_has_fd(a))
        return -ENOSPC;
    do {
        if (used >= pb_slot_limit(a))
            return -ENOSPC;
    } while (!atomic_compare_exchange_weak(&c->used, &used, used + 1));

    /* Without holes from an earlier, larger bound the search starts at the end. */
    uint64_t n = __atomic_load_n(&a->header->nslots, __ATOMIC_RELAXED);
    int64_t full_until = atomic_load(&c->full_until);
    int r = -ENOSPC;
    if (!full_until || pb_clock_mono() >= full_until)
        r = take_hole(a, used >= n ? (uint32_t)n : 0, &slot);
    if (r < 0) {
        atomic_fetch_sub(&c->used, 1);
        return r;
    }
    r = pb_reserve(a->fd, slot_offset(a, slot), a->segment_size);
    if (r == 0)
        r = map_slot(a, slot);
    if (r < 0) {
        atomic_store(&c->full_until, pb_clock_mono() + FULL_PAUSE_NS);
        atomic_store(&c->segments[slot].space, PB_SPACE_HOLE);
        atomic_fetch_sub(&c->used, 1);
        return r;
    }
    raise_nslots(a, (uint64_t)slot + 1);
    *ret = slot;
    return 0;
}

/* The count of slots in a state, or NULL for a state that is not counted. A hint: it saves a search. */
static _Atomic uint32_t *space_count(struct pb_control *c, enum pb_space space)
{
    return space == PB_SPACE_READY ? &c->nready : space == PB_SPACE_FREE ? &c->nfree : NULL;
}

bool pb_slot_take(struct pb_arena *a, enum pb_space space, uint32_t *ret)
{
    struct pb_control *c = a->control;
    _Atomic uint32_t *count = space_count(c, space);
    uint32_t n = (uint32_t)__atomic_load_n(&a->header->nslots, __ATOMIC_RELAXED);

    if (atomic_load(count) == 0)
        return false;
    for (uint32_t slot = 0; slot < n && slot < a->max_slots; slot++) {
        uint32_t want = space;
        if (atomic_load_explicit(&c->segments[slot].space, memory_order_relaxed) == want &&
            atomic_compare_exchange_strong(&c->segments[slot].space, &want, PB_SPACE_BUSY)) {
            atomic_fetch_sub(count, 1);
            *ret = slot;
            return true;
        }
    }
    return false;
}

void pb_slot_give(struct pb_arena *a, uint32_t slot, enum pb_space space)
{
    /* Counted before it can be taken, so that the count never goes below zero. */
    atomic_fetch_add(space_count(a->control, space), 1);
    atomic_store(&a->control->segments[slot].space, space);
}

void pb_slot_punch(struct pb_arena *a, uint32_t slot)
{
    int saved = errno;

    /* Where holes cannot be punched the space stays in the file until it is grown into again. */
    (void)fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)slot_offset(a, slot),
                    a->segment_size);
    errno = saved;
    atomic_store(&a->control->segments[slot].populated, 0);
    atomic_store(&a->control->segments[slot].space, PB_SPACE_HOLE);
    atomic_fetch_sub(&a->control->used, 1);
}
