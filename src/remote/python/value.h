/* value: an object of the target as a short text, like its repr, bounded in depth, items and bytes.
 * Internal. */
#pragma once

#include "remote/python/reader_impl.h"

#define VALUE_DEPTH 3
#define VALUE_ITEMS 10
#define VALUE_SIZE  240 /* of one value, with the end of the string */

struct value_out {
    struct pb_py *py;
    char *buf;
    size_t size, len;
    bool full;   /* the last text did not fit: ends with ".." */
    bool masked; /* text and bytes are left out: they have the name of a secret */
};

/* Appends text; control characters and newlines are escaped. */
void pb_py_put(struct value_out *o, const char *text);
__attribute__((format(printf, 2, 3))) void pb_py_putf(struct value_out *o, const char *format, ...);

/* Appends one object; depth counts down. An object that cannot be read is shown as <type at 0x..>, or <?>. */
void pb_py_put_value(struct value_out *o, uint64_t addr, int depth);

/* Whether text and bytes by that name are to be masked (value_out.masked): see pb_py_redact. */
bool pb_py_is_secret(const struct pb_py *py, const char *name);

/* callable.c: functions, methods and modules by their names. False: another kind of object, or its names
 * cannot be read. type: the name of its type. */
bool pb_py_put_callable(struct value_out *o, uint64_t addr, const char *type);

/* tensor.c: numpy arrays, torch tensors and arrays of JAX as dtype, shape, device and data pointer. False:
 * another kind of object, or an unknown layout. type: the name of its type. */
bool pb_py_put_array(struct value_out *o, uint64_t addr, const char *type);
