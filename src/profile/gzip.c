/* gzip: see gzip.h. One deflate block (RFC 1951) with the fixed codes; a table of the last position of each
 * three bytes finds matches. Profiles shrink to about a fifth; a real compressor would gain more. */
#include "profile/gzip.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/crc32.h"

#define HASH_BITS  15
#define WINDOW     32768
#define MATCH_MIN  3
#define MATCH_MAX  258
#define END_SYMBOL 256

struct bits {
    FILE *out;
    uint64_t held;
    int n;
};

static void put_bits(struct bits *b, uint32_t value, int n)
{
    b->held |= (uint64_t)value << b->n;
    for (b->n += n; b->n >= 8; b->n -= 8, b->held >>= 8)
        putc((int)(b->held & 0xff), b->out);
}

/* Huffman codes go out with their first bit first. */
static void put_code(struct bits *b, uint32_t code, int n)
{
    uint32_t turned = 0;

    for (int i = 0; i < n; i++)
        turned |= (code >> i & 1) << (n - 1 - i);
    put_bits(b, turned, n);
}

static void put_symbol(struct bits *b, unsigned symbol)
{
    if (symbol < 144)
        put_code(b, 0x30 + symbol, 8);
    else if (symbol < 256)
        put_code(b, 0x190 + symbol - 144, 9);
    else if (symbol < 280)
        put_code(b, symbol - 256, 7);
    else
        put_code(b, 0xc0 + symbol - 280, 8);
}

static void put_length(struct bits *b, unsigned length)
{
    static const uint16_t base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                    31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const uint8_t extra[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                    2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    int i = 28;

    while (base[i] > length)
        i--;
    put_symbol(b, (unsigned)(257 + i));
    put_bits(b, length - base[i], extra[i]);
}

static void put_distance(struct bits *b, unsigned distance)
{
    unsigned code = 0, base = 1;
    int extra = 0;

    while (code < 29 && distance >= base + (1u << extra)) {
        base += 1u << extra;
        code++;
        extra = code >= 4 ? (int)(code / 2 - 1) : 0;
    }
    put_code(b, code, 5);
    put_bits(b, distance - base, extra);
}

static uint32_t hash3(const uint8_t *p)
{
    return ((uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2]) * 0x9e3779b1u >> (32 - HASH_BITS);
}

static size_t match_length(const uint8_t *a, const uint8_t *b, size_t max)
{
    size_t n = 0;

    while (n < max && a[n] == b[n])
        n++;
    return n;
}

static int deflate(struct bits *b, const uint8_t *data, size_t len)
{
    _cleanup_free_ size_t *last = calloc((size_t)1 << HASH_BITS, sizeof(*last)); /* place + 1 */

    if (!last)
        return -ENOMEM;
    put_bits(b, 1, 1); /* the last block */
    put_bits(b, 1, 2); /* fixed codes */
    for (size_t i = 0; i < len;) {
        size_t left = len - i, n = 0, at = 0;
        if (left >= MATCH_MIN) {
            uint32_t h = hash3(data + i);
            at = last[h];
            last[h] = i + 1;
            if (at && i + 1 - at <= WINDOW)
                n = match_length(data + at - 1, data + i, left < MATCH_MAX ? left : MATCH_MAX);
        }
        if (n < MATCH_MIN) {
            put_symbol(b, data[i++]);
            continue;
        }
        put_length(b, (unsigned)n);
        put_distance(b, (unsigned)(i + 1 - at));
        i += n;
    }
    put_symbol(b, END_SYMBOL);
    put_bits(b, 0, 7); /* to the end of the byte */
    return 0;
}

int pb_gzip_write(FILE *out, const uint8_t *data, size_t len)
{
    static const uint8_t head[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255};
    struct bits b = {.out = out};

    fwrite(head, 1, sizeof(head), out);
    int r = deflate(&b, data, len);
    if (r < 0)
        return r;
    pb_put_u32(out, pb_crc32(0, data, len));
    pb_put_u32(out, (uint32_t)len);
    return ferror(out) ? -EIO : 0;
}
