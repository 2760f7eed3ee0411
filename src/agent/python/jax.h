/* jax: arrays of JAX as tensor.h describes tensors, read by layout (control/jax_array.h). */
#pragma once

#include "agent/python/tensor.h"
#include "control/jax_array.h"

/* With the GIL, and a reference to the object. room: what *ret points into. 1: it was read; 0: no array of
 * JAX; -1: one that this thread may not read: only `why` is set. Its memory may be gone at any time (another
 * thread gives it to a compiled function): it is read through the kernel only. */
int pb_jax_array_read(const struct pb_python *py, pb_pyobject *object, struct pb_jax_array *room,
                      struct pb_tensor *ret);
