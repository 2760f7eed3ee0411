/* space: room in the arena's memory, slot by slot.
 *
 * Pages are made before they are touched, so that a lack of memory is an error and never a signal. Slots
 * change hands by one compare-and-swap of their `space` word. Signal-safe throughout. */
#include "table/writer.h"

enum { FULL_PAUSE_NS = 100000000 }; /* the pause after memory ran out */

uint32_t pb_slot_limit(const struct pb_arena *a)
{
    uint64_t bound = atomic_load(&a->bound), header = atomic_load(&a->header_used);
    uint64_t n = bound > header ? (bound - header) / a->segment_size : 0;

    if (n < PB_MIN_SLOTS)
        return PB_MIN_SLOTS;
    return n < a->max_slots ? (uint32_t)n : a->max_slots;
}

/* Maps the slot and allocates its pages. */
static int make_slot(struct pb_arena *a, uint32_t slot)
{
    uint32_t extent = slot / PB_EXTENT_SLOTS;

    int r = atomic_load(&a->extents[extent]) ? 0 : pb_memory_map(a, extent);
    if (r < 0)
        return r;
    char *base = atomic_load(&a->extents[extent]) + (size_t)(slot % PB_EXTENT_SLOTS) * a->segment_size;
    a->control->segments[slot].base = base;
    return pb_memory_reserve(a, base, a->segment_size);
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
    uint64_t old = atomic_load(&a->control->nslots);

    while (old < n && !atomic_compare_exchange_weak(&a->control->nslots, &old, n))
        ;
    pb_publish_max(&a->header->nslots, n);
}

int pb_slot_grow(struct pb_arena *a, uint32_t *ret)
{
    struct pb_control *c = a->control;
    uint32_t used = atomic_load(&c->used), slot;

    do {
        if (used >= pb_slot_limit(a))
            return -ENOSPC;
    } while (!atomic_compare_exchange_weak(&c->used, &used, used + 1));

    /* Without holes from an earlier, larger bound the search starts at the end. */
    uint64_t n = atomic_load(&c->nslots);
    int64_t full_until = atomic_load(&c->full_until);
    int r = -ENOSPC;
    if (!full_until || pb_clock_mono() >= full_until)
        r = take_hole(a, used >= n ? (uint32_t)n : 0, &slot);
    if (r < 0) {
        atomic_fetch_sub(&c->used, 1);
        return r;
    }
    r = make_slot(a, slot);
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

/* The counter of slots in that state, or NULL for a state that is not counted. A hint that saves a search. */
static _Atomic uint32_t *space_count(struct pb_control *c, enum pb_space space)
{
    return space == PB_SPACE_READY ? &c->nready : space == PB_SPACE_FREE ? &c->nfree : NULL;
}

bool pb_slot_take(struct pb_arena *a, enum pb_space space, uint32_t *ret)
{
    struct pb_control *c = a->control;
    _Atomic uint32_t *count = space_count(c, space);
    uint32_t n = (uint32_t)atomic_load(&c->nslots);

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
    pb_memory_give_back(a->control->segments[slot].base, a->segment_size);
    atomic_store(&a->control->segments[slot].space, PB_SPACE_HOLE);
    atomic_fetch_sub(&a->control->used, 1);
}
