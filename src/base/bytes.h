/* bytes: bounded reading of little-endian bytes from another program: DWARF and ELF, streams of
 * samples, sets of stacks, tables of lines; and writing them.
 *
 * Reading past the end gives zeros and sets bad, so that a parser checks once, at the end of what it reads.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct pb_cursor {
    const unsigned char *at, *end;
    bool bad;
};

static inline size_t pb_left(const struct pb_cursor *c)
{
    return (size_t)(c->end - c->at);
}

static inline void pb_get(struct pb_cursor *c, void *ret, size_t len)
{
    if (pb_left(c) < len) {
        c->bad = true;
        c->at = c->end;
        memset(ret, 0, len);
        return;
    }
    memcpy(ret, c->at, len);
    c->at += len;
}

static inline void pb_skip(struct pb_cursor *c, uint64_t len)
{
    if (pb_left(c) < len) {
        c->bad = true;
        c->at = c->end;
    } else {
        c->at += len;
    }
}

/* The next len bytes, where they are; NULL: there are fewer. */
static inline const void *pb_span(struct pb_cursor *c, uint64_t len)
{
    const unsigned char *at = c->at;

    pb_skip(c, len);
    return c->bad ? NULL : at;
}

static inline uint8_t pb_u8(struct pb_cursor *c)
{
    uint8_t v;
    pb_get(c, &v, sizeof(v));
    return v;
}

static inline uint16_t pb_u16(struct pb_cursor *c)
{
    uint16_t v;
    pb_get(c, &v, sizeof(v));
    return v;
}

static inline uint32_t pb_u32(struct pb_cursor *c)
{
    uint32_t v;
    pb_get(c, &v, sizeof(v));
    return v;
}

static inline uint64_t pb_u64(struct pb_cursor *c)
{
    uint64_t v;
    pb_get(c, &v, sizeof(v));
    return v;
}

static inline uint64_t pb_uleb(struct pb_cursor *c)
{
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        uint8_t byte = pb_u8(c);
        if (shift < 64)
            v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return v;
    }
}

static inline int64_t pb_sleb(struct pb_cursor *c)
{
    uint64_t v = 0;
    unsigned shift = 0;
    for (;;) {
        uint8_t byte = pb_u8(c);
        if (shift < 64)
            v |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
        if (byte & 0x80)
            continue;
        if (shift < 64 && (byte & 0x40))
            v |= ~0ull << shift;
        return (int64_t)v;
    }
}

static inline uint32_t pb_load_u32(const void *from)
{
    uint32_t v;
    memcpy(&v, from, sizeof(v));
    return v;
}

static inline void pb_store_u32(void *to, uint32_t v)
{
    memcpy(to, &v, sizeof(v));
}

static inline void pb_put_u32(FILE *out, uint32_t v)
{
    fwrite(&v, sizeof(v), 1, out);
}

static inline void pb_put_u64(FILE *out, uint64_t v)
{
    fwrite(&v, sizeof(v), 1, out);
}
