/* name_texts: see name_texts.h. */
#include "remote/native/name_texts.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum {
    BLOCK = 64 << 10,
    FIRST_SLOTS = 256,
};

struct pb_name {
    struct pb_name *next;
    uint32_t hash;
    char text[];
};

struct pb_name_block {
    struct pb_name_block *next;
    size_t used, size;
    _Alignas(8) char data[];
};

static uint32_t hash_of(const char *text, size_t len)
{
    uint64_t h = pb_hash_bytes(PB_HASH_START, text, len);
    return (uint32_t)(h ^ h >> 32);
}

static void *allot(struct pb_names *names, size_t len)
{
    len = (len + 7) & ~(size_t)7;
    if (names->limit && names->bytes + len > names->limit)
        return NULL;
    struct pb_name_block *b = names->blocks;
    if (!b || b->size - b->used < len) {
        size_t size = len > BLOCK ? len : BLOCK;
        b = malloc(sizeof(*b) + size);
        if (!b)
            return NULL;
        *b = (struct pb_name_block){.next = names->blocks, .size = size};
        names->blocks = b;
    }
    void *p = b->data + b->used;
    b->used += len;
    names->bytes += len;
    return p;
}

static int grow_table(struct pb_names *names)
{
    size_t n = names->nslots ? names->nslots * 2 : FIRST_SLOTS;
    struct pb_name **slot = calloc(n, sizeof(struct pb_name *));
    if (!slot)
        return -1;
    for (size_t i = 0; i < names->nslots; i++) {
        for (struct pb_name *p = names->slot[i], *next; p; p = next) {
            next = p->next;
            p->next = slot[p->hash & (n - 1)];
            slot[p->hash & (n - 1)] = p;
        }
    }
    free(names->slot);
    names->slot = slot;
    names->nslots = n;
    return 0;
}

const char *pb_names_keep_len(struct pb_names *names, const char *text, size_t len)
{
    uint32_t h = hash_of(text, len);
    if (names->n >= names->nslots && grow_table(names) < 0)
        return NULL;
    struct pb_name **slot = &names->slot[h & (names->nslots - 1)];
    for (struct pb_name *p = *slot; p; p = p->next)
        if (p->hash == h && strncmp(p->text, text, len) == 0 && !p->text[len])
            return p->text;
    struct pb_name *name = allot(names, sizeof(*name) + len + 1);
    if (!name)
        return NULL;
    name->next = *slot;
    name->hash = h;
    memcpy(name->text, text, len);
    name->text[len] = '\0';
    *slot = name;
    names->n++;
    return name->text;
}

const char *pb_names_keep(struct pb_names *names, const char *text)
{
    return pb_names_keep_len(names, text, strlen(text));
}

void pb_names_done(struct pb_names *names)
{
    for (struct pb_name_block *b = names->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(names->slot);
}
