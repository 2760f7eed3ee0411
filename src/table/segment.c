/* segment: the life of segments: opened, sealed, recycled.
 *
 * free -> claimed -> open -> sealed -> claimed ... Any thread may seal a segment at any time; rows begun in
 * it may still be committed. writer.h has the rule that makes recycling safe. Signal-safe throughout. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "table/writer.h"

enum { CLOCK_SLACK_NS = 1000000 };
enum { MAX_PINNED_TRIES = 64 }; /* old segments of a table tried before the next table */

bool pb_segment_visit(struct pb_segment *s, uint64_t serial)
{
    uint64_t pin = atomic_load(&s->pin);

    do {
        if (PB_SERIAL(pin) != serial || pin & PB_PIN_CLOSED)
            return false;
    } while (!atomic_compare_exchange_weak(&s->pin, &pin, pin + 1));
    return true;
}

void pb_segment_leave(struct pb_segment *s)
{
    atomic_fetch_sub(&s->pin, 1);
}

/* The caller visits the segment. Returns the rows begun in it. */
static uint32_t seal_visited(struct pb_arena *a, struct pb_segment *s)
{
    uint64_t state = atomic_load(&s->state);
    uint32_t capacity = pb_segment_layout(s)->capacity;

    while (PB_STATE_IS(state, PB_SEG_OPEN)) {
        uint64_t sealed = PB_STATE(PB_SERIAL(state), PB_SEG_SEALED, PB_STATE_LEFT(state));
        if (!atomic_compare_exchange_weak(&s->state, &state, sealed))
            continue;
        state = sealed;
        atomic_fetch_sub(&a->control->nopen, 1);
        atomic_fetch_sub(&a->control->tables[s->table].nopen, 1);

        /* Read after the last row could begin, so no row has a later time, except for the little that the
         * clock may step back. */
        struct pb_file_segment *f = pb_segment_file(s);
        __atomic_store_n(&f->count, capacity - PB_STATE_LEFT(state), __ATOMIC_RELAXED);
        __atomic_store_n(&f->sealed_at, pb_clock_mono() + CLOCK_SLACK_NS, __ATOMIC_RELAXED);
        __atomic_store_n(&f->state, PB_SERIAL(state) << PB_SERIAL_SHIFT | PB_SEG_SEALED, __ATOMIC_RELEASE);
    }
    return capacity - PB_STATE_LEFT(state);
}

void pb_segment_seal(struct pb_arena *a, uint64_t cur)
{
    struct pb_segment *s = &a->control->segments[PB_SLOT(cur)];

    if (!pb_segment_visit(s, PB_SERIAL(cur)))
        return;
    seal_visited(a, s);
    pb_segment_leave(s);
}

/* Counts the rows of a sealed segment. False: a row is still being written. Only here does shared memory
 * decide: counting settled rows in private memory would cost every append another locked instruction, half of
 * its price. A stray write to a commit word can keep the segment from being recycled, or let it be recycled
 * while a row in it is written. That row then lands among the segment's next rows, never outside the segment,
 * since private layouts give all offsets. */
static bool count_rows(const struct pb_segment *s, uint64_t serial, uint32_t begun, uint64_t *ret)
{
    const uint64_t *commits = (const uint64_t *)(void *)(s->base + pb_segment_layout(s)->commits);
    uint64_t rows = 0;

    for (uint32_t i = 0; i < begun; i++) {
        uint64_t word = __atomic_load_n(&commits[i], __ATOMIC_ACQUIRE);
        if (PB_SERIAL(word) != serial)
            return false;
        rows += !(word & PB_COMMIT_VOID);
    }
    *ret = rows;
    return true;
}

/* Claims the slot for the caller, unless a thread visits its segment or writes a row in it. */
static bool claim_segment(struct pb_arena *a, struct pb_segment *s, uint64_t serial)
{
    uint64_t rows, only_me = serial << PB_SERIAL_SHIFT | 1;

    if (!pb_segment_visit(s, serial))
        return false;
    uint32_t begun = seal_visited(a, s);
    if (!count_rows(s, serial, begun, &rows) ||
        !atomic_compare_exchange_strong(&s->pin, &only_me, serial << PB_SERIAL_SHIFT | PB_PIN_CLOSED)) {
        pb_segment_leave(s);
        return false;
    }
    struct pb_table *t = &a->control->tables[s->table];
    atomic_store(&s->state, PB_STATE(serial, PB_SEG_CLAIMED, 0));
    __atomic_store_n(&pb_segment_file(s)->state, serial << PB_SERIAL_SHIFT | PB_SEG_FREE, __ATOMIC_RELEASE);
    pb_table_count(t, &t->file->rows_recycled, rows);
    atomic_fetch_sub(&t->nsegments, 1);
    return true;
}

bool pb_segment_settle(struct pb_arena *a, struct pb_segment *s, bool close)
{
    uint64_t state = atomic_load(&s->state), serial = PB_SERIAL(state), rows,
             only_me = serial << PB_SERIAL_SHIFT | 1, closed = serial << PB_SERIAL_SHIFT | PB_PIN_CLOSED;

    if (serial == 0 || PB_STATE_IS(state, PB_SEG_CLAIMED) || atomic_load(&s->pin) == closed)
        return true;
    if (!pb_segment_visit(s, serial))
        return false;
    uint32_t begun = seal_visited(a, s);
    bool settled = count_rows(s, serial, begun, &rows);
    if (settled && close && atomic_compare_exchange_strong(&s->pin, &only_me, closed))
        return true;
    pb_segment_leave(s);
    return settled && !close;
}

/* The oldest segment of a table that is newer than `after`: its serial, or 0. */
static uint64_t next_oldest(struct pb_arena *a, uint32_t table, uint64_t after, uint32_t *slot)
{
    struct pb_segment *segments = a->control->segments;
    uint32_t n = (uint32_t)atomic_load(&a->control->nslots);
    uint64_t best = 0;

    for (uint32_t i = 0; i < n && i < a->max_slots; i++) {
        uint64_t state = atomic_load_explicit(&segments[i].state, memory_order_relaxed);
        uint64_t serial = PB_SERIAL(state);
        if (PB_STATE_IS(state, PB_SEG_CLAIMED) || serial <= after || (best && serial >= best) ||
            atomic_load_explicit(&segments[i].table, memory_order_relaxed) != table)
            continue;
        best = serial;
        *slot = i;
    }
    return best;
}

static bool recycle_from(struct pb_arena *a, uint32_t table, uint32_t *ret)
{
    uint64_t serial = 0;

    for (int tries = 0; tries < MAX_PINNED_TRIES; tries++) {
        uint32_t slot = 0;
        serial = next_oldest(a, table, serial, &slot);
        if (!serial)
            return false;
        if (claim_segment(a, &a->control->segments[slot], serial)) {
            *ret = slot;
            return true;
        }
    }
    return false;
}

/* How many segments a table has above its share. Shares that together exceed the bound are reduced in
 * proportion. */
static int64_t count_excess(struct pb_arena *a, const struct pb_table *t, uint64_t shares,
                            const struct pb_table *asking)
{
    uint64_t share = atomic_load(&t->share), limit = pb_slot_limit(a);

    if (shares > limit)
        share = share * limit / shares;
    return (int64_t)atomic_load(&t->nsegments) + (t == asking) - (int64_t)share;
}

int pb_segment_recycle(struct pb_arena *a, const struct pb_table *asking, uint32_t *ret)
{
    struct pb_control *c = a->control;
    uint32_t n = atomic_load(&c->ntables);
    unsigned char tried[PB_MAX_TABLES] = {0};
    uint64_t shares = 0;

    for (uint32_t i = 0; i < n; i++)
        shares += atomic_load(&c->tables[i].share);
    for (;;) {
        /* A table within its share loses nothing to others, only to itself. */
        int64_t most = 0;
        int victim = -1;
        for (uint32_t i = 0; i < n; i++) {
            int64_t above = count_excess(a, &c->tables[i], shares, asking);
            if (!tried[i] && above > most) {
                most = above;
                victim = (int)i;
            }
        }
        if (victim < 0)
            break;
        if (recycle_from(a, (uint32_t)victim, ret))
            return 0;
        tried[victim] = 1;
    }
    if (asking && !tried[asking->id] && recycle_from(a, asking->id, ret))
        return 0;
    return -ENOBUFS;
}

/* Wakes the resident thread, once, since few segments are ready. */
static void wake_resident(struct pb_arena *a)
{
    struct pb_control *c = a->control;

    atomic_fetch_add(&c->taken, 1);
    uint32_t target = atomic_load(&c->ready_target);
    if (!a->wake || target == 0 || atomic_load(&c->nready) * 2 > target || !atomic_exchange(&c->armed, 0))
        return;
    int saved = errno;
    __atomic_fetch_add(a->wake, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, a->wake, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    errno = saved;
}

static int obtain(struct pb_table *t, uint32_t *ret)
{
    struct pb_arena *a = t->arena;

    wake_resident(a);
    if (pb_slot_take(a, PB_SPACE_READY, ret) || pb_slot_take(a, PB_SPACE_FREE, ret))
        return 0;
    int grown = pb_slot_grow(a, ret);
    if (grown == 0)
        return 0;
    int r = pb_segment_recycle(a, t, ret);
    return r < 0 && atomic_load(&a->control->used) < pb_slot_limit(a) ? grown : r;
}

void pb_segment_describe(struct pb_file_segment *f, const struct pb_layout *l, int64_t mono, int64_t real)
{
    uint32_t *offsets = (uint32_t *)(void *)(f + 1);

    f->table = l->table;
    f->schema = l->schema;
    f->capacity = l->capacity;
    f->ncolumns = (uint16_t)l->ncolumns;
    f->mask_words = (uint16_t)l->mask_words;
    f->mono_ns = mono;
    f->real_ns = real;
    f->ts_min = mono;
    f->ts_max = INT64_MIN;
    f->sealed_at = 0;
    f->count = 0;
    f->commits_offset = l->commits;
    f->masks_offset = l->masks;
    f->slots_offset = l->slots;
    f->entries_offset = l->entries;
    f->heap_offset = l->heap;
    f->nslots = l->nslots;
    f->max_strings = l->max_strings;
    f->heap_size = l->heap_size;
    f->reserved = 0;
    f->dict = 0;
    for (uint32_t i = 0; i < l->ncolumns; i++)
        offsets[i] = l->columns[i] >> 8;
}

/* Prepares the caller's slot. The state is written first, so that a reader of the segment's former rows
 * notices. */
static void write_header(struct pb_segment *s, const struct pb_layout *l, uint64_t serial)
{
    struct pb_file_segment *f = pb_segment_file(s);
    int64_t mono, real;

    __atomic_store_n(&f->state, serial << PB_SERIAL_SHIFT | PB_SEG_CLAIMED, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_seq_cst);
    pb_clock_both(&mono, &real);
    atomic_store_explicit(&s->opened, mono, memory_order_relaxed);
    atomic_store_explicit(&s->real, real, memory_order_relaxed);
    atomic_store_explicit(&s->dict, 0, memory_order_relaxed);
    atomic_store_explicit(&s->filled, UINT32_MAX, memory_order_relaxed);
    pb_segment_describe(f, l, mono, real);
    memset(s->base + l->slots, 0, l->nslots * sizeof(uint16_t));
    memset(s->base + l->entries, 0, l->max_strings * sizeof(uint64_t));
    __atomic_store_n(&f->state, serial << PB_SERIAL_SHIFT | PB_SEG_OPEN, __ATOMIC_RELEASE);
}

int pb_segment_open(struct pb_table *t, uint64_t *ret)
{
    struct pb_arena *a = t->arena;
    uint32_t slot;

    int r = obtain(t, &slot);
    if (r < 0)
        return r;
    struct pb_segment *s = &a->control->segments[slot];
    const struct pb_layout *l = atomic_load(&t->layout);
    uint64_t serial = atomic_fetch_add(&a->control->next_serial, 1);

    pb_publish_max(&a->header->next_serial, serial + 1);
    atomic_store_explicit(&s->layout, l, memory_order_relaxed);
    atomic_store(&s->table, t->id);
    write_header(s, l, serial);
    atomic_fetch_add(&t->nsegments, 1);
    atomic_fetch_add(&t->nopen, 1);
    atomic_fetch_add(&a->control->nopen, 1);
    atomic_store(&s->pin, serial << PB_SERIAL_SHIFT);
    atomic_store(&s->state, PB_STATE(serial, PB_SEG_OPEN, l->capacity));
    *ret = serial << PB_SERIAL_SHIFT | slot;
    return 0;
}

void pb_segment_discard(struct pb_arena *a, uint64_t cur)
{
    /* Another thread may have recycled it already. */
    if (claim_segment(a, &a->control->segments[PB_SLOT(cur)], PB_SERIAL(cur)))
        pb_slot_give(a, PB_SLOT(cur), PB_SPACE_FREE);
}

void pb_segment_lower_time(struct pb_segment *s, int64_t ts)
{
    int64_t *min = &pb_segment_file(s)->ts_min, old = __atomic_load_n(min, __ATOMIC_RELAXED);

    for (int i = 0; i < PB_SHARED_TRIES && ts < old; i++)
        if (__atomic_compare_exchange_n(min, &old, ts, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return;
}

void pb_segment_raise_time(struct pb_segment *s, int64_t ts)
{
    int64_t *max = &pb_segment_file(s)->ts_max, old = __atomic_load_n(max, __ATOMIC_RELAXED);

    for (int i = 0; i < PB_SHARED_TRIES && ts > old; i++)
        if (__atomic_compare_exchange_n(max, &old, ts, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return;
}
