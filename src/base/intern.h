/* intern: numbers for texts and for keys of two words, given in the order they are first seen.
 *
 * Caller-owned. A budget that several tables share bounds their memory: when it is used up, known entries are
 * still found, and new ones refused (-ENOSPC). */
#pragma once

#include "base/vector.h"

#include <stddef.h>
#include <stdint.h>

struct pb_keys {
    struct pb_interned *slots;
    size_t cap; /* a power of two */
    size_t n;
};

/* The number of the key. 1: the key is new; 0: it was known; -ENOSPC, -ENOMEM. */
int pb_keys_intern(struct pb_keys *keys, struct pb_budget *budget, uint64_t a, uint64_t b, uint32_t *ret);
/* Finds the key without adding it. -ENOENT. */
int pb_keys_find(const struct pb_keys *keys, uint64_t a, uint64_t b, uint32_t *ret);
/* Forgets all keys and keeps their memory. */
void pb_keys_clear(struct pb_keys *keys);
void pb_keys_done(struct pb_keys *keys);

struct pb_texts {
    char **at;
    uint32_t *slots; /* index + 1; 0: empty */
    size_t cap, n, at_cap;
};

int pb_texts_intern(struct pb_texts *texts, struct pb_budget *budget, const char *text, uint32_t *ret);
void pb_texts_done(struct pb_texts *texts);
