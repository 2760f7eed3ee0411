/* dict: iterates over the items of a dict, or the attributes of an instance, in the target. Internal. */
#pragma once

#include "remote/python/reader_impl.h"

struct items {
    uint64_t entries; /* of the keys */
    uint64_t values;  /* apart from the keys; 0: in the entries */
    unsigned stride, key_at;
    uint64_t n, i;
};

int pb_py_items_of_dict(struct pb_py *py, uint64_t dict, struct items *ret);
/* -ENOENT: the object has no dictionary of its own. */
int pb_py_items_of_instance(struct pb_py *py, uint64_t object, struct items *ret);

/* The value of a key that is that string. -ENOENT: none, or not among the first 1,024. */
int pb_py_dict_get(struct pb_py *py, uint64_t dict, const char *name, uint64_t *ret);

/* 1: *ret_key and *ret_value; 0: no more. Entries without value are skipped. */
int pb_py_items_next(struct pb_py *py, struct items *it, uint64_t *ret_key, uint64_t *ret_value);
