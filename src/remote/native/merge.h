/* merge: merges the native and the Python frames of a thread, taken in the same moment, into one stack.
 *
 * Each call of CPython's evaluation loop (PB_NATIVE_EVAL) runs the Python frames up to one that was entered
 * from C (PB_PY_ENTRY: every frame before 3.11, the entry frame or the one below the shim since). So the
 * loop's frame is replaced by its Python frames, and the native frames between them stay. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "remote/native/unwind.h"
#include "remote/python/python_reader.h"

struct pb_merged {
    bool python;
    size_t index; /* in the frames given */
};

enum pb_merge {
    PB_MERGE_FULL,    /* every call of the loop has its Python frames */
    PB_MERGE_PARTIAL, /* the native stack ends early: the remaining Python frames come last */
    PB_MERGE_APART,   /* they do not match: all native frames, then all Python frames; tell the reader */
};

/* Innermost first. ret has room for native.n + python.n; *ret_n: how many there are. flags: of the native
 * stack. Native frames that are part of the loop's own function (inlined into it) are left out. */
enum pb_merge pb_merge_stacks(const struct pb_native_frame *native, size_t nnative, unsigned flags,
                              const struct pb_py_frame *python, size_t npython, bool python_truncated,
                              struct pb_merged *ret, size_t *ret_n);
