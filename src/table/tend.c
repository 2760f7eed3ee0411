/* tend: the work of the resident thread for the writers: prepares segments with their pages ahead of them,
 * gives back memory above the bound, and seals old open segments. Without it writers are only slower. */
#include <unistd.h>

#include "table/writer.h"

enum {
    MIN_READY = 2,
    MAX_SHARE = 8, /* keep at most one segment in so many ready */
};

/* Frees unused segments first, then the oldest of the table most above its share, until the bound holds. */
static int shrink_to_bound(struct pb_arena *a)
{
    struct pb_control *c = a->control;
    uint32_t slot;

    while (atomic_load(&c->used) > pb_slot_limit(a)) {
        if (!pb_slot_take(a, PB_SPACE_FREE, &slot) && !pb_slot_take(a, PB_SPACE_READY, &slot)) {
            int r = pb_segment_recycle(a, NULL, &slot);
            if (r < 0)
                return r;
        }
        pb_slot_punch(a, slot);
    }
    return 0;
}

/* Twice the number taken since last time, for bursts; never much of the bound. */
static uint32_t choose_target(struct pb_arena *a)
{
    struct pb_control *c = a->control;
    uint32_t want = atomic_exchange(&c->taken, 0) * 2, old = atomic_load(&c->ready_target),
             most = pb_slot_limit(a) / MAX_SHARE;

    if (want < old - old / 4)
        want = old - old / 4;
    if (want < MIN_READY)
        want = MIN_READY;
    return want < most ? want : most;
}

static int make_ready(struct pb_arena *a)
{
    uint32_t slot, used = atomic_load(&a->control->used);

    if (!pb_slot_take(a, PB_SPACE_FREE, &slot)) {
        int r = pb_slot_grow(a, &slot);
        /* When memory is short, preparing segments must not cost existing rows: the target assumed the whole
         * bound. */
        if (r < 0 && used < pb_slot_limit(a) && atomic_load(&a->control->nready) >= used / MAX_SHARE)
            return r;
        if (r < 0)
            r = pb_segment_recycle(a, NULL, &slot);
        if (r < 0)
            return r;
    }
    pb_slot_give(a, slot, PB_SPACE_READY);
    return 0;
}

/* Seals segments that are still open when half of the arena was written after them: those of idle threads.
 * They would be recycled soon, and only sealed segments can be archived in time. */
static void seal_old(struct pb_arena *a)
{
    uint32_t n = (uint32_t)atomic_load(&a->control->nslots), half = pb_slot_limit(a) / 2;
    uint64_t next = atomic_load(&a->control->next_serial);

    for (uint32_t slot = 0; slot < n && slot < a->max_slots; slot++) {
        uint64_t state = atomic_load_explicit(&a->control->segments[slot].state, memory_order_relaxed);
        if (PB_STATE_IS(state, PB_SEG_OPEN) && PB_SERIAL(state) + half < next)
            pb_segment_seal(a, PB_SERIAL(state) << PB_SERIAL_SHIFT | slot);
    }
}

int pb_arena_tend(struct pb_arena *a)
{
    struct pb_control *c = a->control;

    if (atomic_load(&c->live) != PB_LIFE_OPEN)
        return -ESHUTDOWN;
    if (atomic_exchange(&c->tending, 1))
        return 0;
    pb_clock_tend();
    seal_old(a);
    int r = shrink_to_bound(a), made = 0;
    uint32_t target = choose_target(a);
    atomic_store(&c->ready_target, target);
    while (r == 0 && atomic_load(&c->nready) < target) {
        r = make_ready(a);
        made += r == 0;
    }
    atomic_store(&c->armed, 1);
    atomic_store(&c->tending, 0);
    return r < 0 ? r : made;
}
