/* dict: the strings of one segment, each once, and its heap of bytes.
 *
 * A hash table of ids with open addressing over entries that point into a heap. An insert reserves heap and
 * id by one compare-and-swap, fills them, and publishes the id in the hash table by another. A thread that
 * finds the same string published already, by another thread or by a signal handler that interrupted it, uses
 * that one. Signal-safe throughout. */
#include "table/writer.h"

static inline uint64_t load64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint64_t load32(const char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* XORs both halves of the product, so that every bit of both factors counts for one multiplication. */
static inline uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product =
        (unsigned __int128)(a ^ UINT64_C(0xa0761d6478bd642f)) * (b ^ UINT64_C(0xe7037ed1a0b428db));
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Speed matters more than strength: a segment has a few thousand strings, and a bad hash costs probes. */
static inline uint64_t hash(const char *text, uint32_t length)
{
    uint64_t h = length;

    if (length >= 8) {
        const char *p = text;
        for (; length > 16; length -= 16, p += 16)
            h = mix(load64(p) ^ h, load64(p + 8));
        const char *last = p + length - 8; /* may overlap bytes that were mixed already */
        return mix(load64(length > 8 ? p : last) ^ h, load64(last));
    }
    if (length >= 4)
        return mix(load32(text) ^ h, load32(text + length - 4));
    if (length > 0)
        h |= (uint64_t)(unsigned char)text[0] << 8 | (uint64_t)(unsigned char)text[length / 2] << 16 |
             (uint64_t)(unsigned char)text[length - 1] << 24;
    return mix(h, h);
}

static inline bool equal(const char *a, const char *b, uint32_t length)
{
    uint32_t i = 0;

    if (length >= 8) {
        for (; i + 8 < length; i += 8)
            if (load64(a + i) != load64(b + i))
                return false;
        return load64(a + length - 8) == load64(b + length - 8);
    }
    if (length >= 4)
        return load32(a) == load32(b) && load32(a + length - 4) == load32(b + length - 4);
    for (; i < length; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

/* Reserves `strings` ids and `length` bytes of the heap. */
static int reserve_string(struct pb_segment *s, const struct pb_layout *l, uint32_t strings, uint32_t length,
                          uint32_t *id, uint32_t *offset)
{
    uint64_t old = atomic_load_explicit(&s->dict, memory_order_relaxed), next;

    do {
        *id = (uint32_t)(old >> 32);
        *offset = (uint32_t)old;
        if (*id > l->max_strings || strings > l->max_strings - *id || *offset > l->heap_size ||
            length > l->heap_size - *offset)
            return -ENOSPC;
        next = old + ((uint64_t)strings << 32) + length;
        /* Release: where the copy in the file sees these bytes taken it must see that their row has begun. */
    } while (!atomic_compare_exchange_weak_explicit(&s->dict, &old, next, memory_order_release,
                                                    memory_order_relaxed));
    /* Readers use the shared word; both of its halves only grow. */
    pb_publish_max(&pb_segment_file(s)->dict, next);
    return 0;
}

/* Copies the string into the heap and publishes its entry, which no hash slot shows yet. */
static int add_string(struct pb_segment *s, const struct pb_layout *l, uint64_t *entries, const char *text,
                      uint32_t length, uint16_t tag, uint32_t *ret)
{
    uint32_t id, offset;

    int r = reserve_string(s, l, 1, length, &id, &offset);
    if (r < 0)
        return r;
    memcpy(s->base + l->heap + offset, text, length);
    __atomic_store_n(&entries[id], pb_dict_entry(offset, length, tag), __ATOMIC_RELEASE);
    *ret = id;
    return 0;
}

/* Whether that id is the string; `wanted` is its entry without the offset. The hash table and the entries are
 * shared memory and may hold anything. */
static inline bool is_text(const struct pb_segment *s, const struct pb_layout *l, const uint64_t *entries,
                           uint32_t id, uint64_t wanted, const char *text, uint32_t length)
{
    if (__builtin_expect(id >= l->max_strings, 0))
        return false;
    uint64_t entry = __atomic_load_n(&entries[id], __ATOMIC_RELAXED), offset = entry ^ wanted;
    return offset <= 0xffffff && offset + length <= l->heap_size &&
           equal(s->base + l->heap + offset, text, length);
}

int pb_dict_intern(struct pb_segment *s, const char *text, uint32_t length, uint16_t *ret)
{
    const struct pb_layout *l = pb_segment_layout(s);
    uint16_t *slots = (uint16_t *)(void *)(s->base + l->slots);
    uint64_t *entries = (uint64_t *)(void *)(s->base + l->entries);
    uint64_t h = hash(text, length);
    uint16_t tag = (uint16_t)(h >> 48 | 1);
    uint64_t wanted = pb_dict_entry(0, length, tag);
    uint32_t mine = UINT32_MAX, mask = l->nslots - 1;

    for (uint32_t i = 0, at = (uint32_t)(h >> 24) & mask; i < l->nslots; i++, at = (at + 1) & mask) {
        uint16_t shown = __atomic_load_n(&slots[at], __ATOMIC_ACQUIRE);
        if (shown == 0) {
            if (mine == UINT32_MAX) {
                int r = add_string(s, l, entries, text, length, tag, &mine);
                if (r < 0)
                    return r;
            }
            if (__atomic_compare_exchange_n(&slots[at], &shown, (uint16_t)(mine + 1), false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE)) {
                *ret = (uint16_t)mine;
                return 0;
            }
        }
        if (is_text(s, l, entries, shown - 1u, wanted, text, length)) {
            if (mine != UINT32_MAX)
                __atomic_store_n(&entries[mine], 0, __ATOMIC_RELEASE);
            *ret = (uint16_t)(shown - 1);
            return 0;
        }
    }
    return -ENOSPC;
}

int pb_dict_blob(struct pb_segment *s, const void *data, uint32_t length, uint64_t *ret)
{
    const struct pb_layout *l = pb_segment_layout(s);
    uint32_t id, offset;

    int r = reserve_string(s, l, 0, length, &id, &offset);
    if (r < 0)
        return r;
    memcpy(s->base + l->heap + offset, data, length);
    *ret = (uint64_t)offset << 32 | length;
    return 0;
}
