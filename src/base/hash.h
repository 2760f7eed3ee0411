/* hash: FNV-1a, for tables, for ids and to notice a change. Not against an attacker who chooses the bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PB_HASH_START 0xcbf29ce484222325ull

/* Continues h, which begins as PB_HASH_START, with n bytes. */
static inline uint64_t pb_hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

static inline uint64_t pb_hash_text(uint64_t h, const char *text)
{
    return pb_hash_bytes(h, text, strlen(text));
}
