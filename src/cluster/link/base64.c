/* base64: see base64.h. */
#include "cluster/link/base64.h"

#include <stdint.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void pb_base64_encode(const void *bytes, size_t n, char *ret)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t group =
            (uint32_t)p[i] << 16 | (have > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (have > 2 ? p[i + 2] : 0);
        *ret++ = alphabet[group >> 18];
        *ret++ = alphabet[group >> 12 & 63];
        *ret++ = have > 1 ? alphabet[group >> 6 & 63] : '=';
        *ret++ = have > 2 ? alphabet[group & 63] : '=';
    }
}

int pb_base64_value(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}
