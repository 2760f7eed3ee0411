/* enum_members: see enum_members.h. */
#include "engine/worker/enum_members.h"

#include "base/hash.h"
#include "engine/worker/duck.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 256 };

void pb_enum_members_clear(struct pb_enum_members *m)
{
    if (m->n)
        memset(m->hash, 0, (size_t)m->room * 2 * sizeof(*m->hash));
    m->n = 0;
}

void pb_enum_members_done(struct pb_enum_members *m)
{
    free(m->at);
    free(m->hash);
    *m = (struct pb_enum_members){0};
}

static uint32_t hash_of(const char *data, uint32_t length)
{
    uint64_t h = pb_hash_bytes(PB_HASH_START, data, length);
    return (uint32_t)(h ^ h >> 32);
}

/* The slot of the string, used or free, in a hash table that is at most half full. */
static uint32_t *find_slot(const struct pb_enum_members *m, const char *data, uint32_t length)
{
    for (uint32_t slot = hash_of(data, length);; slot++) {
        uint32_t *place = &m->hash[slot & (m->room * 2 - 1)];
        const struct pb_enum_member *have = *place ? &m->at[*place - 1] : NULL;
        if (!have || (have->length == length && memcmp(have->data, data, length) == 0))
            return place;
    }
}

static int grow_table(struct pb_enum_members *m)
{
    uint32_t room = m->room ? m->room * 4 : FIRST_ROOM;
    struct pb_enum_member *at = realloc(m->at, room * sizeof(*at));
    uint32_t *hash = calloc((size_t)room * 2, sizeof(*hash));

    if (at)
        m->at = at;
    if (!at || !hash) {
        free(hash);
        return -ENOMEM;
    }
    free(m->hash);
    m->hash = hash;
    m->room = room;
    for (uint32_t i = 0; i < m->n; i++)
        *find_slot(m, m->at[i].data, m->at[i].length) = i + 1;
    return 0;
}

int pb_enum_members_place(struct pb_enum_members *m, const struct pb_text *text, uint32_t *ret)
{
    if (!text->utf8 || memchr(text->data, 0, text->length))
        return -E2BIG;
    if (m->n == m->room && grow_table(m) < 0)
        return -ENOMEM;
    uint32_t *place = find_slot(m, text->data, text->length);
    if (*place == 0) {
        if (m->n == PB_MAX_MEMBERS)
            return -E2BIG;
        m->at[m->n] = (struct pb_enum_member){.data = text->data, .length = text->length, .order = m->n};
        *place = ++m->n;
    }
    *ret = *place - 1;
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    const struct pb_enum_member *x = a, *y = b;
    int r = memcmp(x->data, y->data, x->length < y->length ? x->length : y->length);
    return r ? r : (x->length > y->length) - (x->length < y->length);
}

int pb_enum_members_make_type(struct pb_enum_members *m, struct pb_cat_enum *ret, uint32_t *to)
{
    char **names = calloc(m->n, sizeof(*names));
    int r = names ? 0 : -ENOMEM;

    qsort(m->at, m->n, sizeof(*m->at), by_bytes);
    for (uint32_t i = 0; r == 0 && i < m->n; i++) {
        to[m->at[i].order] = i;
        names[i] = strndup(m->at[i].data, m->at[i].length);
        r = names[i] ? 0 : -ENOMEM;
    }
    if (r == 0) {
        ret->type = duck.create_enum_type((const char **)names, m->n);
        duckdb_type width = ret->type ? duck.enum_internal_type(ret->type) : DUCKDB_TYPE_INVALID;
        ret->width = width == DUCKDB_TYPE_UTINYINT ? 1 : width == DUCKDB_TYPE_USMALLINT ? 2 : 4;
        r = ret->type ? 0 : -EINVAL;
    }
    for (uint32_t i = 0; names && i < m->n; i++)
        free(names[i]);
    free(names);
    return r;
}
