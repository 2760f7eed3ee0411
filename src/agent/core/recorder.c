/* recorder: see recorder.h. */
#include "agent/core/recorder.h"

#include "agent/core/agent_clock.h"
#include "table/arena.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#define PLACES  64
#define WAIT_NS (500 * PB_NS_PER_MS)

static struct pb_arena *open_arena;
static uint64_t generation;
/* The number of threads inside, counted in several places so that threads that record all the time do not
 * share a cache line. */
static struct {
    _Alignas(64) int32_t inside;
} places[PLACES];

struct pb_arena *pb_recorder_enter(uint32_t *place)
{
    if (!__atomic_load_n(&open_arena, __ATOMIC_RELAXED))
        return NULL;
    uint32_t at = (uint32_t)((uint64_t)pthread_self() * UINT64_C(0x9e3779b97f4a7c15) >> 58);
    __atomic_fetch_add(&places[at].inside, 1, __ATOMIC_SEQ_CST);
    struct pb_arena *arena = __atomic_load_n(&open_arena, __ATOMIC_SEQ_CST);
    if (!arena)
        __atomic_fetch_sub(&places[at].inside, 1, __ATOMIC_SEQ_CST);
    *place = at;
    return arena;
}

void pb_recorder_leave(uint32_t place)
{
    __atomic_fetch_sub(&places[place].inside, 1, __ATOMIC_RELEASE);
}

int pb_recorder_is_open(void)
{
    return __atomic_load_n(&open_arena, __ATOMIC_RELAXED) != NULL;
}

uint64_t pb_recorder_generation(void)
{
    return __atomic_load_n(&generation, __ATOMIC_RELAXED);
}

void pb_recorder_open(struct pb_arena *arena)
{
    __atomic_fetch_add(&generation, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&open_arena, arena, __ATOMIC_SEQ_CST);
}

static int anybody_inside(void)
{
    for (int i = 0; i < PLACES; i++)
        if (__atomic_load_n(&places[i].inside, __ATOMIC_SEQ_CST))
            return 1;
    return 0;
}

int pb_recorder_close(void)
{
    const struct timespec pause = {.tv_nsec = 100000};

    __atomic_store_n(&open_arena, NULL, __ATOMIC_SEQ_CST);
    for (uint64_t until = pb_now_ns() + WAIT_NS; anybody_inside();) {
        if (pb_now_ns() > until)
            return -EBUSY;
        nanosleep(&pause, NULL);
    }
    return 0;
}

void pb_recorder_forget(void)
{
    __atomic_store_n(&open_arena, NULL, __ATOMIC_SEQ_CST);
    for (int i = 0; i < PLACES; i++)
        __atomic_store_n(&places[i].inside, 0, __ATOMIC_SEQ_CST);
}

struct pb_table *pb_recorder_table(struct pb_arena *arena, const struct pb_table_spec *spec,
                                   struct pb_known_table *known)
{
    struct pb_table *made;

    if (__atomic_load_n(&known->generation, __ATOMIC_ACQUIRE) == pb_recorder_generation())
        return __atomic_load_n(&known->table, __ATOMIC_RELAXED);
    if (pb_table_new(arena, spec, &made) < 0)
        return NULL;
    __atomic_store_n(&known->table, made, __ATOMIC_RELAXED);
    __atomic_store_n(&known->generation, pb_recorder_generation(), __ATOMIC_RELEASE);
    return made;
}

int pb_recorder_begin_row(const struct pb_table_spec *spec, struct pb_known_table *known, struct pb_row *row,
                          uint32_t *place)
{
    struct pb_arena *arena = pb_recorder_enter(place);
    if (!arena)
        return -ENOENT;
    struct pb_table *table = pb_recorder_table(arena, spec, known);
    int r = table ? pb_row_begin(table, row) : -ENOMEM;
    if (r < 0)
        pb_recorder_leave(*place);
    return r;
}

void pb_recorder_end_row(struct pb_row *row, uint32_t place)
{
    pb_row_commit(row);
    pb_recorder_leave(place);
}
