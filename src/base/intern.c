/* intern: see intern.h. */
#include "base/intern.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define FIRST_CAP 1024

struct pb_interned {
    uint64_t a, b;
    uint32_t number; /* + 1; 0: empty */
};

static uint64_t mix_bits(uint64_t h)
{
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

static size_t key_slot(const struct pb_keys *keys, uint64_t a, uint64_t b)
{
    size_t i = (size_t)mix_bits(mix_bits(a) ^ b) & (keys->cap - 1);

    while (keys->slots[i].number && (keys->slots[i].a != a || keys->slots[i].b != b))
        i = (i + 1) & (keys->cap - 1);
    return i;
}

static int grow_keys(struct pb_keys *keys, struct pb_budget *budget)
{
    struct pb_keys grown = {.cap = keys->cap ? 2 * keys->cap : FIRST_CAP, .n = keys->n};

    int r = pb_budget_take(budget, (grown.cap - keys->cap) * sizeof(*grown.slots));
    if (r < 0)
        return r;
    grown.slots = calloc(grown.cap, sizeof(*grown.slots));
    if (!grown.slots)
        return -ENOMEM;
    for (size_t i = 0; i < keys->cap; i++)
        if (keys->slots[i].number)
            grown.slots[key_slot(&grown, keys->slots[i].a, keys->slots[i].b)] = keys->slots[i];
    free(keys->slots);
    *keys = grown;
    return 0;
}

int pb_keys_find(const struct pb_keys *keys, uint64_t a, uint64_t b, uint32_t *ret)
{
    size_t i = keys->cap ? key_slot(keys, a, b) : 0;

    if (!keys->cap || !keys->slots[i].number)
        return -ENOENT;
    *ret = keys->slots[i].number - 1;
    return 0;
}

int pb_keys_intern(struct pb_keys *keys, struct pb_budget *budget, uint64_t a, uint64_t b, uint32_t *ret)
{
    if (pb_keys_find(keys, a, b, ret) == 0)
        return 0;
    int r = 4 * (keys->n + 1) > 3 * keys->cap ? grow_keys(keys, budget) : 0;
    if (r < 0)
        return r;
    *ret = (uint32_t)keys->n++;
    keys->slots[key_slot(keys, a, b)] = (struct pb_interned){a, b, *ret + 1};
    return 1;
}

void pb_keys_clear(struct pb_keys *keys)
{
    if (keys->cap)
        memset(keys->slots, 0, keys->cap * sizeof(*keys->slots));
    keys->n = 0;
}

void pb_keys_done(struct pb_keys *keys)
{
    free(keys->slots);
    *keys = (struct pb_keys){0};
}

static size_t text_slot(const struct pb_texts *t, const char *text)
{
    size_t i = (size_t)mix_bits(pb_hash_text(PB_HASH_START, text)) & (t->cap - 1);

    while (t->slots[i] && strcmp(t->at[t->slots[i] - 1], text) != 0)
        i = (i + 1) & (t->cap - 1);
    return i;
}

static int grow_texts(struct pb_texts *t, struct pb_budget *budget)
{
    size_t cap = t->cap ? 2 * t->cap : FIRST_CAP;

    int r = pb_budget_take(budget, (cap - t->cap) * sizeof(*t->slots));
    if (r < 0)
        return r;
    uint32_t *slots = calloc(cap, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    free(t->slots);
    t->slots = slots;
    t->cap = cap;
    for (size_t i = 0; i < t->n; i++)
        t->slots[text_slot(t, t->at[i])] = (uint32_t)i + 1;
    return 0;
}

int pb_texts_intern(struct pb_texts *t, struct pb_budget *budget, const char *text, uint32_t *ret)
{
    size_t i = t->cap ? text_slot(t, text) : 0, len = strlen(text) + 1;

    if (t->cap && t->slots[i]) {
        *ret = t->slots[i] - 1;
        return 0;
    }
    int r = 2 * (t->n + 1) > t->cap ? grow_texts(t, budget) : 0;
    if (r == 0)
        r = pb_grow((void **)&t->at, &t->at_cap, t->n, sizeof(*t->at), budget);
    if (r == 0)
        r = pb_budget_take(budget, len + 16);
    if (r < 0)
        return r;
    char *copy = malloc(len);
    if (!copy)
        return -ENOMEM;
    t->at[t->n] = memcpy(copy, text, len);
    t->slots[text_slot(t, text)] = (uint32_t)t->n + 1;
    *ret = (uint32_t)t->n++;
    return 1;
}

void pb_texts_done(struct pb_texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->at[i]);
    free(t->at);
    free(t->slots);
    *t = (struct pb_texts){0};
}
