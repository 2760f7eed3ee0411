/* allocations_sample: see allocations.h.
 *
 * Bytes are sampled, not calls: the distance from one sample to the next is drawn anew each time, with an
 * exponential distribution, so that every byte has the same chance whatever pattern the program has. A block
 * of n bytes is chosen with the probability 1 - exp(-n / mean) and stands for n divided by that: sums over
 * the rows are what the program allocated, but for chance. */
#include "agent/probes/allocations/allocations.h"

#include "agent/core/recorder.h"
#include "agent/core/thread_start.h"
#include "agent/python/enter.h"
#include "agent/python/frames.h"
#include "agent/python/here.h"
#include "control/tables.def"
#include "table/arena.h"
#include "table/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SLOTS_BITS  15
#define SLOTS       (1u << SLOTS_BITS)
#define MOST_ALIVE  (SLOTS / 2)
#define JUDGED_BITS 10
#define MOST_FAR    60 /* frames up to the program's own */

struct pb_allocations pb_allocations = {.left = PB_ALLOC_IDLE, .left_other = PB_ALLOC_IDLE};

/* With the GIL. */
struct followed {
    uintptr_t block; /* 0: free */
    struct pb_row_ref row;
};
static struct followed *followed; /* by the block's hash, then the next free place; NULL: nothing is */
static uint64_t of_arena;         /* generation of the arena that the rows are in */
static int busy;                  /* what we call may allocate */
static char library[256];
/* Codes that were judged: a text is not compared for each tensor. One that was freed and another in its place
 * is judged wrongly, for as long as its place here is not taken: the wrong line is named. */
static struct {
    const pb_pyobject *code;
    int is_library;
} judged[1 << JUDGED_BITS];

enum { PB_IDS_OF(PB_TABLE_MEMORY_ALLOCATIONS) COLUMNS };
static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_MEMORY_ALLOCATIONS)};
static const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_MEMORY_ALLOCATIONS),
                                          .comment = PB_COMMENT_OF(PB_TABLE_MEMORY_ALLOCATIONS),
                                          .columns = columns,
                                          .ncolumns = COLUMNS,
                                          .share = 8};
static struct pb_known_table table;

/* --- numbers: the agent has no libm ----------------------------------------------------------------- */

static uint64_t next_random(void)
{
    static uint64_t state;

    state = state ? state : (uint64_t)pb_clock_mono() | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* -ln(u) for an even u in (0, 1], to 1e-6. */
static double draw_exponential(void)
{
    uint64_t r = next_random() >> 11 | 1; /* 53 bits */
    int top = 63 - __builtin_clzll(r);
    double m = (double)r / (double)(UINT64_C(1) << top), s = (m - 1) / (m + 1), q = s * s;
    double ln = 2 * s * (1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q / 11)))));

    return (53 - top) * 0.69314718055994531 - ln;
}

/* exp(-x) for x >= 0, to 1e-4. */
static double exp_of_minus(double x)
{
    if (x > 40)
        return 0;
    double y = x / 256, e = 1 - y * (1 - y * (1.0 / 2 - y * (1.0 / 6 - y / 24)));
    for (int i = 0; i < 8; i++)
        e *= e;
    return e;
}

uint64_t pb_alloc_choose(int64_t *left, uint64_t size)
{
    int64_t now = __atomic_load_n(left, __ATOMIC_RELAXED);
    double mean = (double)__atomic_load_n(&pb_allocations.mean, __ATOMIC_RELAXED);

    if (!__atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(left, PB_ALLOC_IDLE, __ATOMIC_RELAXED);
        return 0;
    }
    if (now >= 0)
        return 0;
    /* The distances have no memory: the next one begins with the end of this block. */
    __atomic_store_n(left, 1 + (int64_t)(draw_exponential() * mean), __ATOMIC_RELAXED);
    return (uint64_t)((double)size / (1 - exp_of_minus((double)size / mean)));
}

/* --- where ------------------------------------------------------------------------------------------ */

static int is_library(const struct pb_python *py, pb_pyobject *code)
{
    size_t length, at = (uint64_t)(uintptr_t)code * UINT64_C(0x9e3779b97f4a7c15) >> (64 - JUDGED_BITS);

    if (judged[at].code != code) {
        judged[at].is_library = pb_frames_is_library(pb_here_text(py, code, PB_HERE_FILE, &length), library);
        judged[at].code = code;
    }
    return judged[at].is_library;
}

int pb_alloc_is_library(const char *file)
{
    return pb_frames_is_library(file, library);
}

int pb_alloc_place(const struct pb_python *py, struct pb_alloc_place *ret)
{
    struct pb_here here;
    struct pb_alloc_place place = {0};
    pb_pyobject *code;
    int at;

    if (!pb_here_begin(py, &here))
        return 0;
    for (int i = 0; i < MOST_FAR && !place.caller && pb_here_next(&here, &code, &at); i++) {
        if (!place.code) {
            place.code = code;
            place.at = at;
        }
        if (!is_library(py, code)) {
            place.caller = code;
            place.caller_at = at;
        }
    }
    if (place.code)
        py->incref(place.code);
    if (place.caller)
        py->incref(place.caller);
    *ret = place;
    return place.code != NULL;
}

void pb_alloc_place_release(const struct pb_python *py, struct pb_alloc_place *place)
{
    const struct pb_alloc_place held = *place;

    *place = (struct pb_alloc_place){0};
    if (held.code)
        py->decref(held.code);
    if (held.caller)
        py->decref(held.caller);
}

/* --- what is followed ------------------------------------------------------------------------------- */

static uint32_t home_of(uintptr_t block)
{
    return (uint32_t)((uint64_t)block * UINT64_C(0x9e3779b97f4a7c15) >> (64 - SLOTS_BITS));
}

/* The place of the block, or the free one where it would be. */
static struct followed *find_followed(uintptr_t block)
{
    uint32_t at = home_of(block);

    for (uint32_t n = 0; n < SLOTS && followed[at].block && followed[at].block != block; n++)
        at = (at + 1) % SLOTS;
    return &followed[at];
}

/* Moves up those behind that would not be found any more. */
static void remove_followed(struct followed *gone)
{
    uint32_t hole = (uint32_t)(gone - followed);

    for (uint32_t n = 0, at = (hole + 1) % SLOTS; n < SLOTS && followed[at].block;
         n++, at = (at + 1) % SLOTS) {
        uint32_t home = home_of(followed[at].block);
        if ((at - home) % SLOTS >= (at - hole) % SLOTS) {
            followed[hole] = followed[at];
            hole = at;
        }
    }
    followed[hole].block = 0;
}

void pb_alloc_filter_add(const void *block)
{
    uint8_t *count = pb_alloc_filter(block);

    if (*count < UINT8_MAX)
        (*count)++;
}

void pb_alloc_filter_remove(const void *block)
{
    uint8_t *count = pb_alloc_filter(block);

    if (*count > 0 && *count < UINT8_MAX)
        (*count)--;
}

/* --- rows ------------------------------------------------------------------------------------------- */

static void set_caller(struct pb_row *row, const char *file, int line)
{
    char text[600];
    int n = snprintf(text, sizeof(text), "%.560s:%d", file, line);

    pb_set_string(row, CALLER, text, (size_t)n);
}

static void set_texts(struct pb_row *row, const struct pb_alloc_texts *texts)
{
    if (texts->function) {
        pb_set_string(row, FUNCTION_NAME, texts->function, strlen(texts->function));
        pb_set_string(row, FILE_NAME, texts->file, strlen(texts->file));
        pb_set_i32(row, LINE, texts->line);
    }
    if (texts->caller)
        set_caller(row, texts->caller, texts->caller_line);
}

static void set_place(const struct pb_python *py, struct pb_row *row, const struct pb_alloc_place *place)
{
    size_t length;

    if (place->code) {
        const char *name = pb_here_text(py, place->code, PB_HERE_NAME, &length);
        pb_set_string(row, FUNCTION_NAME, name, length);
        name = pb_here_text(py, place->code, PB_HERE_FILE, &length);
        pb_set_string(row, FILE_NAME, name, length);
        pb_set_i32(row, LINE, pb_here_line(py, place->code, place->at));
    }
    if (place->caller) {
        const char *file = pb_here_text(py, place->caller, PB_HERE_FILE, &length);
        set_caller(row, file, pb_here_line(py, place->caller, place->caller_at));
    }
}

void pb_alloc_write(const struct pb_python *py, const struct pb_alloc_place *place,
                    const struct pb_alloc_row *what)
{
    struct pb_row row;
    uint32_t inside;

    /* Encoded first, where that is needed at all: it allocates, which must not be while a row is open. */
    size_t length;
    for (int i = 0; place && i < 2; i++) {
        pb_pyobject *code = i ? place->caller : place->code;
        for (int which = PB_HERE_NAME; code && which <= PB_HERE_FILE; which++)
            pb_here_text(py, code, which, &length);
    }
    if (pb_recorder_begin_row(&spec, &table, &row, &inside) < 0)
        return;
    if (of_arena != pb_recorder_generation()) {
        memset(followed, 0, sizeof(*followed) * SLOTS);
        __atomic_store_n(&pb_allocations.alive, 0, __ATOMIC_RELAXED);
        of_arena = pb_recorder_generation();
    }
    int follows = what->block && pb_allocations.alive < MOST_ALIVE;
    pb_set_timestamp(&row, TIMESTAMP, what->when);
    if (place) {
        set_place(py, &row, place);
        pb_set_i32(&row, THREAD, pb_thread_id());
    } else if (what->texts) {
        set_texts(&row, what->texts);
    }
    pb_set_i64(&row, ALLOCATED_BYTES, (int64_t)what->weight);
    pb_set_i64(&row, BYTES, (int64_t)what->bytes);
    pb_set_string(&row, KIND, what->kind, strlen(what->kind));
    if (what->device)
        pb_set_string(&row, DEVICE, what->device, strlen(what->device));
    pb_set_bool(&row, FOLLOWED, follows);
    struct pb_row_ref ref = pb_row_ref(&row);
    pb_recorder_end_row(&row, inside);
    __atomic_store_n(&pb_allocations.samples, pb_allocations.samples + 1, __ATOMIC_RELAXED);
    if (!follows)
        return;
    struct followed *f = find_followed((uintptr_t)what->block);
    if (!f->block) { /* else a thread without the GIL freed it unseen */
        __atomic_store_n(&pb_allocations.alive, pb_allocations.alive + 1, __ATOMIC_RELAXED);
        pb_alloc_filter_add(what->block);
    }
    *f = (struct followed){.block = (uintptr_t)what->block, .row = ref};
}

void pb_alloc_sampled(void *block, size_t size)
{
    const struct pb_python *py = pb_python_here();
    struct pb_alloc_place place = {0};
    struct pb_here here;
    uint64_t weight = pb_alloc_choose(&pb_allocations.left, size);

    if (!weight || !py || !pb_here_begin(py, &here) || busy || !followed)
        return;
    if (pb_enter_is_inside(py))
        return; /* what we allocate ourselves says nothing of the program */
    busy = 1;
    pb_alloc_place(py, &place);
    pb_alloc_write(
        py, &place,
        &(struct pb_alloc_row){
            .kind = "python", .bytes = size, .weight = weight, .when = pb_clock_mono(), .block = block});
    /* Both are executed, so this is not their end. */
    pb_alloc_place_release(py, &place);
    busy = 0;
}

void pb_alloc_freed(const void *block)
{
    const struct pb_python *py = pb_python_here();
    struct pb_here here;
    uint32_t inside;

    pb_alloc_tensors_freed(block);
    if (!__atomic_load_n(&pb_allocations.enabled, __ATOMIC_ACQUIRE) || !py || !pb_here_begin(py, &here) ||
        !followed)
        return;
    struct followed *f = find_followed((uintptr_t)block);
    if (f->block != (uintptr_t)block)
        return;
    const struct pb_row_ref row = f->row;
    remove_followed(f);
    pb_alloc_filter_remove(block);
    __atomic_store_n(&pb_allocations.alive, pb_allocations.alive - 1, __ATOMIC_RELAXED);
    struct pb_arena *arena = pb_recorder_enter(&inside);
    if (!arena)
        return;
    if (of_arena == pb_recorder_generation())
        pb_fill_timestamp(arena, row, FREED, pb_clock_mono());
    pb_recorder_leave(inside);
}

/* --- begin and end ---------------------------------------------------------------------------------- */

int pb_alloc_begin(uint64_t mean, const char *stdlib)
{
    if (!followed) {
        void *memory = mmap(NULL, sizeof(*followed) * SLOTS, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return -ENOMEM;
        followed = memory;
    } else { /* of a run that was stopped and is not over yet */
        memset(followed, 0, sizeof(*followed) * SLOTS);
    }
    of_arena = 0;
    memset(pb_allocations.filter, 0, sizeof(pb_allocations.filter));
    snprintf(library, sizeof(library), "%s", stdlib);
    memset(judged, 0, sizeof(judged));
    pb_allocations.alive = 0;
    pb_allocations.samples = 0;
    busy = 0;
    __atomic_store_n(&pb_allocations.mean, mean, __ATOMIC_RELAXED);
    __atomic_store_n(&pb_allocations.left, (int64_t)(draw_exponential() * (double)mean), __ATOMIC_RELAXED);
    __atomic_store_n(&pb_allocations.left_other, (int64_t)(draw_exponential() * (double)mean),
                     __ATOMIC_RELAXED);
    return 0;
}

void pb_alloc_end(const struct pb_python *py)
{
    (void)py;
    if (followed)
        munmap(followed, sizeof(*followed) * SLOTS);
    followed = NULL;
    of_arena = 0;
    memset(pb_allocations.filter, 0, sizeof(pb_allocations.filter));
    __atomic_store_n(&pb_allocations.alive, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pb_allocations.left, PB_ALLOC_IDLE, __ATOMIC_RELAXED);
    __atomic_store_n(&pb_allocations.left_other, PB_ALLOC_IDLE, __ATOMIC_RELAXED);
}
