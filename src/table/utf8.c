/* utf8: whether bytes are UTF-8, as the database requires of text. */
#include <string.h>

#include "table/reader.h"

/* Length of the sequence that starts at p, or 0. */
static size_t sequence_length(const unsigned char *p, size_t left)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;

    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong forms, surrogates, and values beyond U+10FFFF show in the second byte. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

bool pb_utf8_valid(const char *data, size_t length)
{
    const unsigned char *p = (const unsigned char *)data;

    for (size_t i = 0; i < length;) {
        uint64_t eight;
        if (length - i >= sizeof(eight)) {
            memcpy(&eight, p + i, sizeof(eight));
            if (!(eight & UINT64_C(0x8080808080808080))) {
                i += sizeof(eight);
                continue;
            }
        }
        size_t n = sequence_length(p + i, length - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}
