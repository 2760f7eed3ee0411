/* dict: see dict.h. A dict is a table of indices and an array of entries in the order of insertion; the
 * values may be stored apart, so that instances of a class share the keys. Where an instance keeps its values
 * has changed with almost every version. */
#include "remote/python/dict.h"

#include <errno.h>

#define ENTRIES_MAX (1u << 24) /* of a dict; most may be empty, each costs a read */

enum { TYPE_INLINE_VALUES = 1 << 2, TYPE_MANAGED_DICT = 1 << 4 };

static int open_keys(struct pb_py *py, uint64_t keys, struct items *ret)
{
    uint8_t head[40];
    struct items it = {.values = ret->values};

    int r = pb_source_read(py->source, keys, head, sizeof(head));
    if (r < 0)
        return r;
    if (py->layout.version >= 0x030b) {
        if (head[9] > 40)
            return -EBADMSG;
        bool general = head[10] == 0;
        it.n = u64_at(head, 24);
        it.entries = keys + 32 + (1ull << head[9]);
        it.stride = general ? 24 : 16;
        it.key_at = general ? 8 : 0;
    } else if (py->layout.version < 0x0306) { /* no indices yet: the entries are the hash table */
        it.n = u64_at(head, 8);
        it.entries = keys + 32;
        it.stride = 24;
        it.key_at = 8;
    } else {
        uint64_t size = u64_at(head, 8);
        it.n = u64_at(head, 32);
        it.entries = keys + 40 + size * (size <= 0xff ? 1 : size <= 0xffff ? 2 : size <= 0xffffffff ? 4 : 8);
        it.stride = 24;
        it.key_at = 8;
    }
    if (it.n > ENTRIES_MAX)
        return -EBADMSG;
    *ret = it;
    return 0;
}

/* From 3.13 on a head precedes the values. */
static uint64_t first_value(const struct pb_py *py, uint64_t values)
{
    return values && py->layout.version >= 0x030d ? values + 8 : values;
}

int pb_py_items_of_dict(struct pb_py *py, uint64_t dict, struct items *ret)
{
    uint64_t keys, values;

    int r = read_u64(py, dict + py->layout.dict.keys, &keys);
    if (r == 0)
        r = read_u64(py, dict + py->layout.dict.values, &values);
    if (r < 0)
        return r;
    struct items it = {.values = first_value(py, values)};
    r = open_keys(py, keys, &it);
    if (r == 0)
        *ret = it;
    return r;
}

static int open_inline(struct pb_py *py, uint64_t keys, uint64_t values, struct items *ret)
{
    struct items it = {.values = values};

    int r = keys && values ? open_keys(py, keys, &it) : -ENOENT;
    if (r == 0)
        *ret = it;
    return r;
}

/* From 3.11 on the dictionary's pointer is before the object, once the dictionary was used; until then only
 * the values are there. */
static int open_managed(struct pb_py *py, uint64_t object, uint64_t keys, uint64_t basicsize,
                        bool inline_values, struct items *ret)
{
    unsigned version = py->layout.version;
    uint64_t before[2]; /* up to 3.11 values, then the dictionary */

    int r = pb_source_read(py->source, object - py->layout.type.managed_dict - 8, before, sizeof(before));
    if (r < 0)
        return r;
    if (version == 0x030b)
        return before[1] ? pb_py_items_of_dict(py, before[1], ret) : open_inline(py, keys, before[0], ret);
    if (version == 0x030c && before[1] & 1)
        return open_inline(py, keys, before[1] + 1, ret);
    if (before[1])
        return pb_py_items_of_dict(py, before[1], ret);
    return inline_values ? open_inline(py, keys, first_value(py, object + basicsize), ret) : -ENOENT;
}

int pb_py_items_of_instance(struct pb_py *py, uint64_t object, struct items *ret)
{
    const struct pb_py_layout *l = &py->layout;
    uint64_t type, flags, basicsize, dictoffset, keys = 0, dict;

    int r = read_u64(py, object + l->object.type, &type);
    if (r == 0)
        r = read_u64(py, type + l->type.flags, &flags);
    if (r == 0)
        r = read_u64(py, type + l->type.basicsize, &basicsize);
    if (r == 0)
        r = read_u64(py, type + l->type.dictoffset, &dictoffset);
    if (r < 0)
        return r;
    if (l->version >= 0x030b && flags & TYPE_MANAGED_DICT) {
        r = read_u64(py, type + l->type.cached_keys, &keys);
        bool inline_values = l->version >= 0x030d && flags & TYPE_INLINE_VALUES;
        return r < 0 ? r : open_managed(py, object, keys, basicsize, inline_values, ret);
    }
    /* Negative: relative to the end of an object of variable size. */
    if (dictoffset == 0 || dictoffset > 1 << 20)
        return -ENOENT;
    r = read_u64(py, object + dictoffset, &dict);
    return r < 0 ? r : dict ? pb_py_items_of_dict(py, dict, ret) : -ENOENT;
}

int pb_py_items_next(struct pb_py *py, struct items *it, uint64_t *ret_key, uint64_t *ret_value)
{
    while (it->i < it->n) {
        uint64_t i = it->i++, entry[2];
        if (i % 1024 == 1023 && is_late(&py->budget))
            return 0;
        int r = pb_source_read(py->source, it->entries + i * it->stride + it->key_at, entry, sizeof(entry));
        if (r == 0 && it->values)
            r = read_u64(py, it->values + 8 * i, &entry[1]);
        if (r < 0)
            return r;
        if (entry[0] && entry[1]) {
            *ret_key = entry[0];
            *ret_value = entry[1];
            return 1;
        }
    }
    return 0;
}

#define KEYS_MAX   1024
#define KEYS_BATCH 32
#define KEY_WINDOW 160 /* of a key: its head and any name that we look up */

/* Which of some keys is that name; -ENOENT: none. */
static int find_key(struct pb_py *py, const uint64_t *keys, size_t n, const char *name)
{
    uint8_t windows[KEYS_BATCH][KEY_WINDOW];
    struct pb_piece pieces[KEYS_BATCH] = {0};
    char text[PB_PY_NAME_MAX];

    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct pb_piece){keys[i], windows[i], KEY_WINDOW};
    ssize_t have = pb_source_readv(py->source, pieces, n);
    for (size_t i = 0; i < n; i++) {
        /* A key at the end of its mapping ends the batch: the rest are read one by one. */
        int len = (ssize_t)i < have
                      ? pb_py_text_of(py, keys[i], windows[i], KEY_WINDOW, text, sizeof(text), NULL)
                      : pb_py_text(py, keys[i], text, sizeof(text), NULL);
        if (len >= 0 && strcmp(text, name) == 0)
            return (int)i;
    }
    return -ENOENT;
}

int pb_py_dict_get(struct pb_py *py, uint64_t dict, const char *name, uint64_t *ret)
{
    struct items it;
    uint64_t keys[KEYS_BATCH], values[KEYS_BATCH];

    int more = pb_py_items_of_dict(py, dict, &it);
    if (more < 0)
        return more;
    for (size_t seen = 0, n = 0; seen < KEYS_MAX; seen += n) {
        for (n = 0; n < KEYS_BATCH; n++) {
            more = pb_py_items_next(py, &it, &keys[n], &values[n]);
            if (more <= 0)
                break;
        }
        int at = n ? find_key(py, keys, n, name) : -ENOENT;
        if (at >= 0)
            *ret = values[at];
        if (at >= 0 || more <= 0)
            return at >= 0 ? 0 : more < 0 ? more : -ENOENT;
    }
    return -ENOENT;
}

#define ATTRIBUTES_MAX 256

int pb_py_attribute(struct pb_py *py, uint64_t object, const char *name, uint64_t *ret)
{
    struct items it;
    uint64_t key, value;
    char text[PB_PY_NAME_MAX];

    int r = pb_py_items_of_instance(py, object, &it);
    for (int n = 0; r >= 0 && n < ATTRIBUTES_MAX; n++) {
        r = pb_py_items_next(py, &it, &key, &value);
        if (r <= 0)
            break;
        if (pb_py_text(py, key, text, sizeof(text), NULL) >= 0 && strcmp(text, name) == 0) {
            *ret = value;
            return 0;
        }
    }
    return r < 0 ? r : -ENOENT;
}
