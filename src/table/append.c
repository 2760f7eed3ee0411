/* append: rows, from the reservation of a place to the commit word.
 *
 * A thread reserves a row by one compare-and-swap on the segment's state. The segment cannot be recycled
 * until that row is committed or void. Signal-safe throughout. */
#include <pthread.h>

#include "table/writer.h"

enum { MAX_TRIES = 1000 }; /* a try fails only if another thread made progress: a guard */

bool pb_arena_enter(struct pb_arena *a)
{
    struct pb_control *c = a->control;

    /* Refused appends are not counted: threads that keep trying must not keep `inside` above 0. */
    if (atomic_load(&c->live) != PB_LIFE_OPEN)
        return false;
    /* pb_arena_release does these two in the opposite order, so one of the threads sees the other. */
    atomic_fetch_add(&c->inside, 1);
    if (atomic_load(&c->live) == PB_LIFE_OPEN)
        return true;
    atomic_fetch_sub(&c->inside, 1);
    return false;
}

void pb_arena_leave(struct pb_arena *a)
{
    atomic_fetch_sub(&a->control->inside, 1);
}

/* Identifies the thread: its thread pointer, which every ABI keeps in a register. */
static inline uint64_t thread_key(void)
{
#if defined(__x86_64__)
    uint64_t self;
    __asm__("mov %%fs:0, %0" : "=r"(self));
    return self;
#elif defined(__aarch64__)
    uint64_t self;
    __asm__("mrs %0, tpidr_el0" : "=r"(self));
    return self;
#else
    return (uint64_t)pthread_self();
#endif
}

/* The thread's entry in the map. Keys are never removed. A thread that finds no free entry within a few
 * probes shares that of another, most likely dead, thread and so its segment, which any number of threads may
 * share. */
static uint32_t find_thread(struct pb_control *c, uint64_t key, uint32_t home)
{
    for (uint32_t i = 0; i < PB_THREAD_PROBES; i++) {
        uint32_t at = (home + i) % PB_THREADS;
        uint64_t old = atomic_load_explicit(&c->thread_key[at], memory_order_relaxed);
        if (old == key || (old == 0 && atomic_compare_exchange_strong(&c->thread_key[at], &old, key)) ||
            old == key)
            return at;
    }
    return home;
}

static inline _Atomic uint64_t *own_cur(struct pb_control *c, const struct pb_table *t)
{
    uint64_t key = thread_key();
    uint32_t at = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 54);

    if (__builtin_expect(atomic_load_explicit(&c->thread_key[at], memory_order_relaxed) != key, 0))
        at = find_thread(c, key, at);
    return &c->thread_cur[at][t->id];
}

/* Takes a row of the segment that cur names. Does not use the table's arena: until the row is taken, a
 * retired arena may be released at any moment, after which the control memory reads as zeros. */
static inline bool take_row(struct pb_control *c, struct pb_table *t, uint64_t cur, struct pb_row *row,
                            int64_t ts)
{
    struct pb_segment *s = &c->segments[PB_SLOT(cur)];
    uint64_t state = atomic_load_explicit(&s->state, memory_order_relaxed);

    do {
        if ((state ^ cur) >> PB_SERIAL_SHIFT || !PB_STATE_IS(state, PB_SEG_OPEN) || PB_STATE_LEFT(state) == 0)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&s->state, &state, state - 1, memory_order_acq_rel,
                                                    memory_order_relaxed));
    const struct pb_layout *l = pb_segment_layout(s);
    uint32_t index = l->capacity - PB_STATE_LEFT(state);
    row->base = s->base;
    row->columns = l->columns;
    row->commit = (uint64_t *)(void *)(s->base + l->commits) + index;
    row->serial = cur >> PB_SERIAL_SHIFT << PB_SERIAL_SHIFT;
    row->nulls = l->nulls;
    row->more_nulls[0] = l->more_nulls[0];
    row->more_nulls[1] = l->more_nulls[1];
    row->segment = s;
    row->table = t;
    row->index = index;
    row->mask_words = l->mask_words;
    row->error = 0;
    if (l->time_offset)
        ((int64_t *)(void *)(s->base + l->time_offset))[index] = ts;
    if (__builtin_expect(ts < atomic_load_explicit(&s->opened, memory_order_relaxed), 0))
        pb_segment_lower_time(s, ts);
    return true;
}

static void void_row(struct pb_row *row)
{
    __atomic_store_n(row->commit, row->serial | PB_COMMIT_VOID, __ATOMIC_RELEASE);
}

/* Whether the thread may get a segment of its own. Not where open segments would then displace older rows: of
 * 160 slow threads most stay in the shared segment. */
static bool may_own(struct pb_table *t)
{
    uint32_t limit = pb_slot_limit(t->arena);

    return atomic_load(&t->arena->control->nopen) < limit / 4 &&
           atomic_load(&t->nopen) <=
               (limit / 8 > atomic_load(&t->share) ? limit / 8 : atomic_load(&t->share)) / 2;
}

/* The cur word for this append: the thread's own or the table's. */
static _Atomic uint64_t *choose_cur(struct pb_table *t, _Atomic uint64_t *own)
{
    uint64_t cur = atomic_load(own);

    if (cur >= PB_PROMOTE_ROWS) {
        struct pb_segment *s = &t->arena->control->segments[PB_SLOT(cur)];
        if (PB_SERIAL(atomic_load(&s->state)) == PB_SERIAL(cur) && may_own(t))
            return own;
        /* Its segment was recycled since (the thread is too slow for a segment of its own), or there is no
         * room for one. */
        pb_segment_seal(t->arena, cur);
        atomic_compare_exchange_strong(own, &cur, 0);
        return &t->shared;
    }
    if (cur + 1 < PB_PROMOTE_ROWS)
        atomic_compare_exchange_strong(own, &cur, cur + 1);
    else if (may_own(t))
        return own;
    return &t->shared;
}

/* Replaces the segment of cur by a new one. A thread that loses the race, to another thread or to a signal
 * handler that interrupted it, gives its segment back. */
static int roll_segment(struct pb_table *t, _Atomic uint64_t *where, uint64_t cur)
{
    uint64_t next;
    int r = pb_segment_open(t, &next);
    if (r < 0)
        return r;
    uint64_t old = cur;
    if (!atomic_compare_exchange_strong(where, &old, next))
        pb_segment_discard(t->arena, next);
    else if (cur >= PB_PROMOTE_ROWS)
        pb_segment_seal(t->arena, cur);
    return 0;
}

/* Whether the row just taken has all columns of the table. False: the segment is older than a column; the
 * thread leaves it. */
static bool is_current(struct pb_table *t, struct pb_row *row)
{
    if (__builtin_expect(
            pb_segment_layout(row->segment) == atomic_load_explicit(&t->layout, memory_order_acquire), 1))
        return true;
    pb_segment_seal(t->arena, row->serial | pb_segment_slot(t->arena, row->segment));
    void_row(row); /* last: the row keeps the arena from being given back */
    return false;
}

/* Between pb_arena_enter and pb_arena_leave. */
static int reserve_inside(struct pb_control *c, struct pb_table *t, struct pb_row *row, int64_t ts)
{
    _Atomic uint64_t *own = own_cur(c, t), *where = choose_cur(t, own);
    int r = -ENOBUFS;

    for (int i = 0; i < MAX_TRIES; i++) {
        uint64_t cur = atomic_load(where);
        if (cur >= PB_PROMOTE_ROWS && take_row(c, t, cur, row, ts)) {
            if (is_current(t, row))
                return 0;
            continue;
        }
        r = roll_segment(t, where, cur);
        if (r == 0 || atomic_load(where) != cur)
            continue;
        if (where == &t->shared)
            break;
        atomic_compare_exchange_strong(own, &cur, 0);
        where = &t->shared;
    }
    return r < 0 ? r : -ENOBUFS;
}

static __attribute__((noinline)) int reserve_slowly(struct pb_arena *a, struct pb_table *t,
                                                    struct pb_row *row, int64_t ts)
{
    if (!pb_arena_enter(a))
        return -ESHUTDOWN;
    int r = reserve_inside(a->control, t, row, ts);
    pb_arena_leave(a);
    return r;
}

int pb_row_reserve(struct pb_table *t, struct pb_row *row, int64_t ts)
{
    /* Loaded once: a release sets it to NULL at any moment. The arena itself stays. */
    struct pb_arena *a = __atomic_load_n(&t->arena, __ATOMIC_RELAXED);
    if (__builtin_expect(!a, 0))
        return -ESHUTDOWN;
    struct pb_control *c = a->control;
    uint64_t cur = atomic_load_explicit(own_cur(c, t), memory_order_acquire);
    if (__builtin_expect(cur >= PB_PROMOTE_ROWS && take_row(c, t, cur, row, ts), 1) && is_current(t, row))
        return 0;
    return reserve_slowly(a, t, row, ts);
}

static void count_dropped(struct pb_table *t)
{
    struct pb_arena *a = __atomic_load_n(&t->arena, __ATOMIC_RELAXED);

    if (!a || !pb_arena_enter(a))
        return;
    pb_table_count(t, &t->file->rows_dropped, 1);
    pb_arena_leave(a);
}

int pb_row_begin(struct pb_table *t, struct pb_row *row)
{
    /* The clock is read first: then no row in a segment is later than the moment that sealed it. */
    int r = pb_row_reserve(t, row, pb_clock_mono());
    if (__builtin_expect(r < 0 && r != -ESHUTDOWN, 0))
        count_dropped(t);
    return r;
}

void pb_row_store_masks(struct pb_row *row)
{
    const struct pb_layout *l = pb_segment_layout(row->segment);
    uint64_t *masks = (uint64_t *)(void *)(row->base + l->masks) + (size_t)row->index * l->mask_words;

    for (uint32_t i = 0; i < l->mask_words; i++)
        masks[i] = row->more_nulls[i];
}

void pb_row_abort(struct pb_row *row)
{
    void_row(row);
}

int pb_row_fail(struct pb_row *row)
{
    pb_table_count(row->table, &row->table->file->rows_dropped, 1);
    void_row(row);
    return row->error;
}

void pb_table_count(struct pb_table *t, uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}
