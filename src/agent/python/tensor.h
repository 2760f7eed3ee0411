/* tensor: reads tensors of torch by layout, for everything that describes one or takes its value.
 *
 * A call to torch would be seen by the program: a mode of torch functions or of the dispatcher, a class that
 * derives from Tensor, torch.jit.trace and a profiler get each one, and one can be a collective, or wait for
 * a device. So nothing of torch is called for a tensor. Which class of C++ it has, and where its fields are,
 * is checked for each tensor; one that does not fit is not read. */
#pragma once

#include "agent/python/python.h"

#include <stdint.h>

#define PB_TENSOR_DIMS 64

struct pb_tensor {
    const char *impl;      /* of C++ */
    const char *data;      /* of the first element, in the CPU's memory; NULL: there is none, see `why` */
    const char *why;       /* why its values cannot be read; NULL: they can */
    const char *dtype;     /* "float32" */
    const int64_t *sizes;  /* valid as long as the tensor lives and is not resized */
    const int64_t *steps;  /* its strides, in elements */
    int64_t count, nbytes; /* its elements; of its storage */
    int dims, number;      /* number: of the type, as torch counts them */
    int size;              /* bytes of an element */
    int version;           /* count of changes; -1: not counted (inference mode) */
    int is_dense;          /* its memory, if it has any, has its values */
    char device[24];       /* "cpu", "cuda:1" */
};

/* Looks up once what is needed of torch, without the GIL; else the first read does. */
void pb_tensor_begin(const struct pb_python *py);

/* With the GIL, and a reference to the object. 1: it was read; 0: not a tensor; -1: a tensor of an
 * unsupported kind: only `why` and `version` are set. Never waits and leaves no exception. */
int pb_tensor_read(const struct pb_python *py, pb_pyobject *object, struct pb_tensor *ret);

/* The number of a type by its name, as torch counts them; -1: torch has none of that name. */
int pb_tensor_type_number(const char *name);

/* How far the elements reach from the first one, in elements; -1: not within a storage. */
int64_t pb_tensor_reach(const struct pb_tensor *t);

/* Reads its gradient. 0: it has none. *object is that of Python's, borrowed, if a reference to it keeps the
 * gradient; else NULL. */
int pb_tensor_grad(const struct pb_tensor *t, pb_pyobject **object, struct pb_tensor *ret);

/* Whether its class is torch.Tensor itself: no code of the program runs for an attribute of it. */
int pb_tensor_is_plain(const struct pb_python *py, pb_pyobject *object);

/* Reads what a node of autograd keeps for the backward. saved: the node's attribute `_raw_saved_NAME`, an
 * object of torch's class SavedTensor. Its hooks, which are code of the program or compute a part of the
 * forward again, are not called: 0, as where it keeps nothing. */
int pb_tensor_saved(const struct pb_python *py, pb_pyobject *saved, struct pb_tensor *ret);
