/* plain_text: numbers and text without printf and strtol, for code that also runs in a signal handler. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Both append at `at`, with a NUL, and return where that NUL is. */
static inline char *pb_plain_put(char *at, const char *text)
{
    size_t len = strlen(text);
    memcpy(at, text, len + 1);
    return at + len;
}

static inline char *pb_plain_put_number(char *at, int number)
{
    char digits[16];
    int n = 0;

    do
        digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    while (n)
        *at++ = digits[--n];
    *at = '\0';
    return at;
}

/* Parses a number behind blanks, in base 8, 10 or 16 (with or without 0x), and moves *at behind it. */
static inline uint64_t pb_plain_number(const char **at, unsigned base, bool *ret_found)
{
    const char *p = *at;
    uint64_t value = 0;

    while (*p == ' ')
        p++;
    if (base == 16 && p[0] == '0' && p[1] == 'x')
        p += 2;
    const char *start = p;
    for (;; p++) {
        unsigned digit = *p >= '0' && *p <= '9'                 ? (unsigned)(*p - '0')
                         : base == 16 && *p >= 'a' && *p <= 'f' ? (unsigned)(*p - 'a') + 10
                                                                : base;
        if (digit >= base)
            break;
        value = value * base + digit;
    }
    *ret_found = p > start;
    *at = p;
    return value;
}
