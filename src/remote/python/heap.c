/* heap: see heap.h. */
#include "remote/python/heap.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/python/reader_impl.h"

enum {
    INTERPRETERS_MAX = 4096,
    ARENAS_MAX = 1 << 16,
    COUNTED_MAX = 4096,  /* arenas whose blocks are counted: a call each, 4 GB of them from 3.10 on */
    FIRST_ARENAS = 16,   /* so many descriptions at first, then twice as many, and so on */
    SCAN_MAX = 16 << 20, /* bytes of data of an interpreter */
    BATCH = 256,
    POOLS = 64,      /* of an arena */
    ARENA_LEN = 48,  /* of a description; its fields: */
    ARENA_POOLS = 8, /* the first pool that was never used */
    ARENA_NFREE = 16,
    ARENA_NTOTAL = 20,
    ARENA_NEXT = 32,
    GENERATION_3_6 = 48, /* bytes of one */
    GENERATION_3_6_COUNT = 36,
};

static uint64_t pool_size(const struct pb_py *py)
{
    return py->layout.version >= 0x030a ? 16384 : 4096;
}

/* The oldest interpreter, at the end of the list: new ones are put before it. */
static uint64_t main_interpreter(struct pb_py *py)
{
    uint64_t interp, next;

    if (read_u64(py, py->interp_head, &interp) < 0)
        return 0;
    for (int i = 0; interp && i < INTERPRETERS_MAX; i++, interp = next)
        if (read_u64(py, interp + py->layout.interp.next, &next) < 0 || !next)
            return interp;
    return 0;
}

/* --- arenas --- */

static bool is_used(const struct pb_py *py, const uint8_t *arena)
{
    uint64_t address = u64_at(arena, 0), pools = u64_at(arena, ARENA_POOLS), size = pool_size(py);
    uint32_t nfree = u32_at(arena, ARENA_NFREE), ntotal = u32_at(arena, ARENA_NTOTAL);

    /* If the region does not begin at a multiple of a pool's size, one pool is lost. */
    return address && address % 4096 == 0 && (ntotal == POOLS || ntotal == POOLS - 1) && nfree <= ntotal &&
           pools % size == 0 && pools >= address && pools <= address + POOLS * size;
}

static bool is_unused(const uint8_t *arena, uint64_t first)
{
    uint64_t next = u64_at(arena, ARENA_NEXT);

    return u64_at(arena, 0) == 0 &&
           (next == 0 || (next >= first && next < first + (uint64_t)ARENAS_MAX * ARENA_LEN &&
                          (next - first) % ARENA_LEN == 0));
}

/* Adds the blocks of one arena: each of its pools begins with the number in use. */
static int64_t count_blocks(struct pb_py *py, const uint8_t *arena)
{
    uint64_t size = pool_size(py), at = (u64_at(arena, 0) + size - 1) / size * size,
             end = u64_at(arena, ARENA_POOLS);
    struct pb_piece pieces[POOLS];
    uint32_t counts[POOLS];
    int64_t sum = 0;
    size_t n = 0;

    for (; at < end && n < POOLS; at += size, n++)
        pieces[n] = (struct pb_piece){at, &counts[n], sizeof(counts[n])};
    ssize_t got = n ? pb_source_readv(py->source, pieces, n) : 0;
    for (ssize_t i = 0; i < got; i++)
        sum += counts[i] <= size / 8 ? counts[i] : 0;
    return sum;
}

struct arenas {
    struct pb_py *py;
    uint64_t first, n; /* n: descriptions; 0: as many as are valid */
    int64_t used, blocks;
    bool skip_blocks;
};

/* One batch of descriptions. False: they are not valid. */
static bool add_batch(struct arenas *a, uint64_t from, uint64_t n)
{
    uint8_t batch[BATCH][ARENA_LEN];

    if (pb_source_read(a->py->source, a->first + from * ARENA_LEN, batch, n * ARENA_LEN) < 0)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        bool sane = is_used(a->py, batch[i]) || is_unused(batch[i], a->first);
        if (!sane && (a->n == 0 || u64_at(batch[i], 0)))
            return false;
    }
    for (uint64_t i = 0; i < n; i++)
        if (is_used(a->py, batch[i]) && a->used++ < COUNTED_MAX && !a->skip_blocks)
            a->blocks += count_blocks(a->py, batch[i]);
    return true;
}

/* If their number is not known, it is the last of 16, 32, 64, .. up to which all are valid. */
static bool add_arenas(struct arenas *a)
{
    uint64_t end = a->n ? a->n : FIRST_ARENAS;

    for (uint64_t at = 0; at < end; at += BATCH)
        if (!add_batch(a, at, end - at < BATCH ? end - at : BATCH))
            return false;
    while (a->n == 0 && end < ARENAS_MAX) {
        struct arenas more = *a;
        for (uint64_t at = end; at < 2 * end; at += BATCH)
            if (!add_batch(&more, at, 2 * end - at < BATCH ? 2 * end - at : BATCH))
                return true;
        *a = more;
        end *= 2;
    }
    return true;
}

/* --- up to 3.11: looking for the variables --- */

static bool is_pointer(const struct pb_maps *maps, uint64_t value)
{
    if (value < 4096 || value % 16)
        return false;
    const struct pb_map *map = pb_maps_find(maps, value);
    return map && (map->prot & PROT_WRITE) && map->end - value >= FIRST_ARENAS * ARENA_LEN;
}

static void remember(struct pb_py_heap *heap, uint64_t variable)
{
    if (heap->nvariables < sizeof(heap->variables) / sizeof(heap->variables[0]))
        heap->variables[heap->nvariables++] = variable;
}

/* Words of the interpreter's data that may point to a description, and what they point to. */
struct candidates {
    struct pb_piece pieces[BATCH];
    uint64_t variables[BATCH];
    uint8_t arenas[BATCH][ARENA_LEN];
    size_t n;
};

/* Keeps the variables that point to the lowest description in use: one of them points to the first
 * description. */
static void check_candidates(struct pb_py *py, struct candidates *c, struct pb_py_heap *heap, uint64_t *least)
{
    for (size_t from = 0; from < c->n;) {
        ssize_t got = pb_source_readv(py->source, c->pieces + from, c->n - from);
        size_t end = got > 0 ? from + (size_t)got : from;
        for (size_t i = from; i < end; i++) {
            uint64_t value = c->pieces[i].addr;
            if (value > *least || !is_used(py, c->arenas[i]))
                continue;
            if (value < *least) {
                *least = value;
                heap->nvariables = 0;
            }
            remember(heap, c->variables[i]);
        }
        from = end + 1; /* after the one that cannot be read */
    }
    c->n = 0;
}

static void scan_words(struct pb_py *py, const struct pb_maps *maps, uint64_t start, const uint8_t *data,
                       size_t length, struct pb_py_heap *heap, uint64_t *least)
{
    struct candidates c = {.n = 0};

    for (size_t at = 0; at + 8 <= length; at += 8) {
        uint64_t value = u64_at(data, at);
        /* Most point to data of the interpreter itself. */
        if (value - start < length || value > *least || !is_pointer(maps, value))
            continue;
        c.pieces[c.n] = (struct pb_piece){value, c.arenas[c.n], ARENA_LEN};
        c.variables[c.n++] = start + at;
        if (c.n == BATCH)
            check_candidates(py, &c, heap, least);
    }
    check_candidates(py, &c, heap, least);
}

/* Searches the data of the object that has the list of interpreters: its writable mapping, and the one that
 * follows. */
static void find_variables(struct pb_py *py, const struct pb_maps *maps, struct pb_py_heap *heap)
{
    const struct pb_map *map = pb_maps_find(maps, py->interp_head), *end = maps->at + maps->n;
    uint64_t least = UINT64_MAX;
    struct arenas arenas = {.py = py, .skip_blocks = true};

    while (map && map > maps->at && (map - 1)->end == map->start && ((map - 1)->prot & PROT_WRITE))
        map--;
    for (const struct pb_map *m = map; m && m < end && (m == map || (m - 1)->end == m->start); m++) {
        size_t length = m->end - m->start < SCAN_MAX ? m->end - m->start : SCAN_MAX;
        if (!(m->prot & PROT_WRITE) || strcmp(m->path, "[heap]") == 0)
            break;
        _cleanup_free_ uint8_t *data = malloc(length);
        ssize_t got = data ? pb_source_read_some(py->source, m->start, data, length) : 0;
        if (got > 0)
            scan_words(py, maps, m->start, data, (size_t)got, heap, &least);
    }
    arenas.first = least;
    if (heap->nvariables && !add_arenas(&arenas))
        heap->nvariables = 0;
}

static void search(struct pb_py *py, struct pb_py_heap *heap)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    uint64_t variable;

    heap->searched = true;
    if (py->layout.heap.state || pb_source_maps(py->source, &maps, NULL) < 0)
        return;
    find_variables(py, &maps, heap);
    for (size_t i = 0; py->layout.gc.size == 0 && i < maps.n; i++)
        if (maps.at[i].offset == 0 && strstr(maps.at[i].path, "python") &&
            pb_elf_lookup(py->source, maps.at[i].start, "_PyGC_generation0", &variable) == 0 &&
            read_u64(py, variable, &heap->generations) == 0)
            return;
}

/* --- both --- */

static bool find_arenas(struct pb_py *py, const struct pb_py_heap *heap, uint64_t interp, struct arenas *ret)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t state = interp + l->heap.state, value;
    uint32_t n;

    if (!l->heap.state) {
        ret->first = UINT64_MAX;
        for (unsigned i = 0; i < heap->nvariables; i++)
            if (read_u64(py, heap->variables[i], &value) == 0 && value && value < ret->first)
                ret->first = value;
        return heap->nvariables && ret->first != UINT64_MAX;
    }
    if (!interp || (l->heap.indirect && read_u64(py, state, &state) < 0) ||
        read_u64(py, state + l->heap.arenas, &ret->first) < 0 ||
        pb_source_read(py->source, state + l->heap.maxarenas, &n, sizeof(n)) < 0 || n > ARENAS_MAX)
        return false;
    ret->n = n;
    return ret->first != 0 && n != 0;
}

static void read_generations(struct pb_py *py, const struct pb_py_heap *heap, uint64_t interp,
                             struct pb_py_memory *ret)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t at = l->gc.interp && interp ? interp + l->gc.interp
                  : l->gc.runtime        ? py->interp_head - l->runtime.interp_head + l->gc.runtime
                                         : heap->generations;
    uint32_t size = l->gc.size ? l->gc.size : GENERATION_3_6,
             count = l->gc.size ? l->gc.count : GENERATION_3_6_COUNT;
    int32_t values[3];

    for (unsigned i = 0; at && i < 3; i++)
        if (pb_source_read(py->source, at + (uint64_t)i * size + count, &values[i], sizeof(values[i])) < 0 ||
            values[i] < 0)
            return;
    for (unsigned i = 0; at && i < 3; i++)
        ret->gc[i] = values[i];
}

int pb_py_memory(struct pb_py *py, struct pb_py_heap *heap, struct pb_py_memory *ret)
{
    struct pb_py_memory memory = {PB_UNKNOWN, PB_UNKNOWN, PB_UNKNOWN, {PB_UNKNOWN, PB_UNKNOWN, PB_UNKNOWN}};
    struct arenas arenas = {.py = py, .skip_blocks = heap->skip_blocks};

    uint64_t interp = main_interpreter(py);
    if (!interp)
        return -ESRCH;
    if (!heap->searched)
        search(py, heap);
    /* Builds without the GIL have another allocator and another collector. */
    if (!py->layout.free_threaded) {
        read_generations(py, heap, interp, &memory);
        if (find_arenas(py, heap, interp, &arenas) && add_arenas(&arenas)) {
            memory.heap_arenas = arenas.used;
            memory.heap_bytes = arenas.used * (int64_t)(POOLS * pool_size(py));
            memory.heap_blocks =
                arenas.used <= COUNTED_MAX && !heap->skip_blocks ? arenas.blocks : PB_UNKNOWN;
        }
    }
    *ret = memory;
    return 0;
}
