/* text: see text.h. */
#include "base/text.h"

#include <string.h>

size_t pb_utf8_read(const char *text, size_t left, uint32_t *ret_code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)text;
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    uint32_t code = n == 1 ? p[0] : p[0] & (0x7fu >> n);

    if (!n || n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    *ret_code = code;
    return n;
}

bool pb_text_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

bool pb_text_is_turn(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } turns[] = {{0x061c, 0x061c}, {0x200e, 0x200f}, {0x2028, 0x202e},
                 {0x2066, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}};

    for (size_t i = 0; code >= turns[0].first && i < sizeof(turns) / sizeof(turns[0]); i++)
        if (code >= turns[i].first && code <= turns[i].last)
            return true;
    return false;
}

/* The length of the character at text, and what stands for it; *ret_other 0: itself. */
static size_t read_one(const char *text, size_t left, char *ret_other)
{
    uint32_t code;
    size_t n = pb_utf8_read(text, left, &code);

    *ret_other = 0;
    if (n && (code == '\n' || code == '\r' || code == '\t'))
        *ret_other = ' ';
    else if (!n || pb_text_is_control(code) || pb_text_is_turn(code))
        *ret_other = '?';
    return n ? n : 1;
}

size_t pb_text_clean(char *text)
{
    size_t len = strlen(text), to = 0, n;
    char other;

    for (size_t i = 0; i < len; i += n) {
        n = read_one(text + i, len - i, &other);
        memmove(text + to, other ? &other : text + i, other ? 1 : n);
        to += other ? 1 : n;
    }
    text[to] = '\0';
    return to;
}

bool pb_text_is_clean(const char *text)
{
    size_t len = strlen(text), n;
    char other;

    for (size_t i = 0; i < len; i += n) {
        n = read_one(text + i, len - i, &other);
        if (other)
            return false;
    }
    return true;
}

bool pb_text_ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && memcmp(text + n - m, ending, m) == 0;
}
