/* jax_array: reads an array of JAX by layout: its shape, type and device, and where its values are.
 *
 * For the agent, which reads its own process, and for tools, which read another one. Nothing of jaxlib is
 * called: its functions wait for a device, and copy. Each object of C++ on the way is recognised by the name
 * of its class, which stands behind its virtual functions. So an unknown version gives a shape and a type,
 * and a reason why there are no values. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PB_JAX_DIMS 64

/* 0, or a negative errno: that memory cannot be read. */
typedef int pb_jax_read_fn(void *context, uint64_t at, void *to, size_t size);

struct pb_jax_array {
    char dtype[24], device[24]; /* "float32"; "cpu:0", "": not known */
    int dims, size;             /* size: bytes of an element; 0: of a type that is not known here */
    int64_t sizes[PB_JAX_DIMS];
    int64_t steps[PB_JAX_DIMS]; /* its strides, in elements */
    int64_t count;              /* its elements */
    uint64_t data;              /* of the first element; 0: see `why` */
    const char *why;            /* why its values cannot be read; NULL: they can */
};

/* Whether an object may be one, by the name of its type. */
int pb_jax_is_type(const char *name);

/* Reads an object whose type pb_jax_is_type knows. header: the size of an object of Python. 1: it was read;
 * 0: it does not look like an array. */
int pb_jax_read(pb_jax_read_fn *fetch, void *context, uint64_t object, unsigned header,
                struct pb_jax_array *ret);
