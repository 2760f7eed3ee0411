/* text: strings of the target as UTF-8. They are stored as Latin-1, UCS-2 or UCS-4, the narrowest that fits,
 * in the object itself (compact) or, before 3.12, also apart from it. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "remote/python/reader_impl.h"

#define HEAD_MAX     128
#define WINDOW       512       /* read at once: most names are in it with their head */
#define CHARS_MAX    (1 << 20) /* of one string that we look at */
#define REPLACEMENT  0xfffd
#define SURROGATES   0xd800
#define SURROGATES_N 0x800

struct string_head {
    uint64_t length;
    unsigned width;   /* bytes a character */
    uint64_t data_at; /* offset of its text in the object; 0: at `data` */
    uint64_t data;
};

static int parse_head(const struct pb_py *py, const uint8_t *object, size_t have, struct string_head *ret)
{
    const struct pb_py_layout *l = &py->layout;
    if (have < l->unicode.compact_size + 8 || l->unicode.state + 4 > have || l->unicode.length + 8 > have)
        return -EBADMSG;
    uint32_t state = u32_at(object, l->unicode.state) >> l->kind_shift;
    struct string_head h = {.length = u64_at(object, l->unicode.length), .width = state & 7};
    bool compact = state >> 3 & 1, ascii = state >> 4 & 1;

    if ((h.width != 1 && h.width != 2 && h.width != 4) || h.length > INT64_MAX / 8)
        return -EBADMSG;
    if (compact)
        h.data_at = ascii ? l->unicode.ascii_size : l->unicode.compact_size;
    else
        h.data = u64_at(object, l->unicode.compact_size);
    *ret = h;
    return 0;
}

static size_t put_utf8(uint32_t c, char *to)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 63));
        to[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    to[0] = (char)(0xf0 | c >> 18);
    to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63));
    to[3] = (char)(0x80 | (c & 63));
    return 4;
}

static uint32_t char_at(const uint8_t *data, unsigned width, size_t i)
{
    uint32_t c = 0;
    memcpy(&c, data + i * width, width);
    /* A lone surrogate (bytes of a file name that are not text) is not UTF-8. */
    return c > 0x10ffff || (c >= SURROGATES && c < SURROGATES + SURROGATES_N) ? REPLACEMENT : c;
}

/* Encodes as many of n characters as fit, ended by NUL; false: some were left out. */
static bool encode_utf8(const uint8_t *data, unsigned width, size_t n, char *ret, size_t size,
                        size_t *ret_len)
{
    size_t len = 0, i = 0;
    char one[4];

    for (; i < n; i++) {
        size_t bytes = put_utf8(char_at(data, width, i), one);
        if (len + bytes >= size)
            break;
        memcpy(ret + len, one, bytes);
        len += bytes;
    }
    ret[len] = '\0';
    *ret_len = len;
    return i == n;
}

int pb_py_text_of(struct pb_py *py, uint64_t addr, const uint8_t *object, size_t have, char *ret, size_t size,
                  bool *ret_cut)
{
    _cleanup_free_ uint8_t *more = NULL;
    const uint8_t *data = object;
    struct string_head h;
    size_t len;

    int r = parse_head(py, object, have, &h);
    if (r < 0)
        return r;
    /* No more characters are read than can fit: each takes a byte at least. */
    uint64_t wanted = h.length < size ? h.length : size;
    if (wanted > CHARS_MAX)
        wanted = CHARS_MAX;
    if (h.data_at && h.data_at + wanted * h.width <= have) {
        data += h.data_at;
    } else {
        more = malloc(wanted * h.width + 1);
        if (!more)
            return -ENOMEM;
        r = pb_source_read(py->source, h.data_at ? addr + h.data_at : h.data, more, wanted * h.width);
        if (r < 0)
            return r;
        data = more;
    }
    bool whole = encode_utf8(data, h.width, wanted, ret, size, &len);
    if (ret_cut)
        *ret_cut = !whole || wanted < h.length;
    return (int)len;
}

int pb_py_text(struct pb_py *py, uint64_t addr, char *ret, size_t size, bool *ret_cut)
{
    uint8_t object[WINDOW];
    size_t have = sizeof(object);

    int r = pb_source_read(py->source, addr, object, have);
    if (r == -EFAULT) { /* near the end of a mapping: only the required bytes */
        have = py->layout.unicode.compact_size + 8;
        r = have <= HEAD_MAX ? pb_source_read(py->source, addr, object, have) : -EBADMSG;
    }
    return r < 0 ? r : pb_py_text_of(py, addr, object, have, ret, size, ret_cut);
}
