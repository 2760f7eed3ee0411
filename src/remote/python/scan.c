/* scan: searches the variables of a target's objects for CPython's runtime, where neither symbols nor files
 * lead to it; see runtime_place.h.
 *
 * From 3.13 on a runtime begins with a cookie. Before, its list of interpreters is recognised: a variable
 * that points at a structure which points at another that points back, with a sys module of the layout's
 * version. Only a limited amount of writable data of objects is read. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "remote/maps.h"
#include "remote/python/runtime_place.h"

enum {
    SCAN_MAX = 64 << 20, /* bytes that are read in all */
    REGION_MAX = 16 << 20,
    AT_ONCE = 1 << 18,
    BATCH = 128,
    HEADS = 4,       /* different places of the first thread in an interpreter */
    INTERP_LEN = 96, /* as much of an interpreter as holds them */
    CHAIN_MAX = 64,  /* interpreters that are counted */
    NEXT_ID_MAX = 1 << 24,
};

#define FIRST_THAT_TELLS 0x030d

struct runtime_candidate {
    uint64_t at;     /* of the variable */
    uint64_t interp; /* what it points at */
    uint64_t tstate;
    uint32_t head; /* where in the interpreter that is */
};

struct runtime_scan {
    struct pb_py *py;
    const struct pb_maps *maps;
    uint32_t heads[HEADS];
    size_t nheads;
    struct runtime_candidate batch[BATCH];
    size_t n;
    struct place found;
    size_t chain; /* how many interpreters it leads to; 0: nothing was found */
    bool sure;
};

static bool is_data(const struct runtime_scan *s, uint64_t addr)
{
    if (!addr || addr % 8)
        return false;
    const struct pb_map *map = pb_maps_find(s->maps, addr);
    return map && map->prot & PROT_WRITE;
}

static void list_heads(struct runtime_scan *s)
{
    for (size_t i = 0; pb_py_layouts[i].version < FIRST_THAT_TELLS; i++) {
        uint32_t head = pb_py_layouts[i].interp.tstate_head;
        size_t k = 0;
        while (k < s->nheads && s->heads[k] != head)
            k++;
        if (k == s->nheads && k < HEADS && head + 8 <= INTERP_LEN)
            s->heads[s->nheads++] = head;
    }
}

/* Reads as many of n pieces as possible, each whole or zeroed. */
static void read_each(struct pb_py *py, struct pb_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n;) {
        ssize_t have = pb_source_readv(py->source, pieces + i, n - i);
        i += have > 0 ? (size_t)have : 0;
        if (i < n) {
            memset(pieces[i].buf, 0, pieces[i].len);
            i++;
        }
    }
}

static size_t count_chain(struct pb_py *py, uint64_t interp)
{
    size_t n = 0;

    while (interp && n < CHAIN_MAX) {
        n++;
        if (read_u64(py, interp + py->layout.interp.next, &interp) < 0)
            break;
    }
    return n;
}

/* In the runtime the variable is followed by that of the main interpreter and by the next id. */
static bool is_in_runtime(struct pb_py *py, uint64_t at)
{
    uint64_t words[3], id;

    return pb_source_read(py->source, at, words, sizeof(words)) == 0 &&
           read_u64(py, words[1] + py->layout.interp.id, &id) == 0 && id == 0 && words[2] > 0 &&
           words[2] < NEXT_ID_MAX;
}

/* Before 3.7 other variables point at the main interpreter too: the one that leads to most interpreters is
 * the list. */
static void judge_candidate(struct runtime_scan *s, const struct runtime_candidate *c)
{
    struct pb_py *py = s->py;

    for (size_t i = 0; pb_py_layouts[i].version < FIRST_THAT_TELLS; i++) {
        const struct pb_py_layout *l = &pb_py_layouts[i];
        bool runtime = l->runtime.interp_head != 0;
        struct place p = {.runtime = runtime ? c->at - l->runtime.interp_head : 0,
                          .head = runtime ? 0 : c->at,
                          .exact = true};
        if (l->interp.tstate_head != c->head)
            continue;
        pb_py_take_layout(py, l, &p);
        p.version = pb_py_fits(py) ? pb_py_sys_version(py) : 0;
        if (p.version >> 8 != l->version || (runtime && !is_in_runtime(py, c->at)))
            continue;
        size_t chain = count_chain(py, c->interp);
        if (chain > s->chain) {
            s->found = p;
            s->chain = chain;
        }
        s->sure = runtime;
        return;
    }
}

static void judge_batch(struct runtime_scan *s)
{
    uint8_t interps[BATCH][INTERP_LEN];
    uint64_t back[BATCH];
    struct runtime_candidate likely[BATCH];
    struct pb_piece pieces[BATCH];
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        pieces[i] = (struct pb_piece){s->batch[i].interp, interps[i], INTERP_LEN};
    read_each(s->py, pieces, s->n);
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < s->nheads && n < BATCH; k++) {
            uint64_t tstate = u64_at(interps[i], s->heads[k]);
            if (tstate != s->batch[i].interp && is_data(s, tstate))
                likely[n++] =
                    (struct runtime_candidate){s->batch[i].at, s->batch[i].interp, tstate, s->heads[k]};
        }
    /* In all versions without stored offsets, a thread has its interpreter at the same offset. */
    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct pb_piece){likely[i].tstate + pb_py_layouts[0].tstate.interp, &back[i], 8};
    read_each(s->py, pieces, n);
    for (size_t i = 0; i < n && !s->sure; i++)
        if (back[i] == likely[i].interp)
            judge_candidate(s, &likely[i]);
    s->n = 0;
}

static void check_word(struct runtime_scan *s, uint64_t addr, uint64_t word)
{
    uint8_t offsets[PB_PY_OFFSETS_SIZE];
    struct pb_py_layout layout;
    uint32_t version;

    if (memcmp(&word, PB_PY_COOKIE, sizeof(word)) == 0) {
        int r = pb_source_read(s->py->source, addr, offsets, sizeof(offsets));
        if (r == 0)
            r = pb_py_layout_published(offsets, true, &layout, &version, NULL);
        /* With impossible offsets it may still be the runtime, unless another is found. */
        if (r == 0 || (r != -EFAULT && !s->chain)) {
            s->found = (struct place){.runtime = addr};
            s->chain = 1;
            s->sure = r == 0;
        }
    } else if (is_data(s, word)) {
        s->batch[s->n++] = (struct runtime_candidate){.at = addr, .interp = word};
        /* Each may give several candidates. */
        if (s->n == BATCH / HEADS)
            judge_batch(s);
    }
}

static void scan_region(struct runtime_scan *s, uint64_t from, uint64_t len, uint64_t *words)
{
    for (uint64_t at = 0; at < len && !s->sure; at += AT_ONCE) {
        size_t some = len - at < AT_ONCE ? (size_t)(len - at) : AT_ONCE;
        if (pb_source_read(s->py->source, from + at, words, some) < 0)
            continue;
        for (size_t i = 0; i < some / 8 && !s->sure; i++)
            if (words[i])
                check_word(s, from + at + 8 * i, words[i]);
    }
    if (!s->sure)
        judge_batch(s);
}

int pb_py_place_by_scan(struct pb_py *py, const struct pb_maps *maps, struct place *ret)
{
    _cleanup_free_ struct runtime_scan *s = calloc(1, sizeof(*s));
    _cleanup_free_ uint64_t *words = malloc(AT_ONCE);
    uint64_t left = SCAN_MAX;
    bool after = false; /* the mapping before belongs to an object: the next one is its .bss */

    if (!s || !words)
        return -ENOMEM;
    s->py = py;
    s->maps = maps;
    list_heads(s);
    for (size_t i = 0; i < maps->n && left && !s->sure; i++) {
        const struct pb_map *map = &maps->at[i];
        bool follows = after && i && maps->at[i - 1].end == map->start && !map->inode;
        after = map->inode || follows;
        if (!(map->prot & PROT_WRITE) || !(map->prot & PROT_READ) || !(map->inode || follows))
            continue;
        uint64_t len = map->end - map->start;
        len = len > REGION_MAX ? REGION_MAX : len;
        len = len > left ? left : len;
        left -= len;
        scan_region(s, map->start, len, words);
    }
    if (!s->chain)
        return -ENOENT;
    *ret = s->found;
    return 0;
}
