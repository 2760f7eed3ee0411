/* merge: one stack out of the native and the Python frames of a thread, taken in the same moment.
 *
 * Each call of CPython's evaluation loop (PB_NATIVE_EVAL) runs the Python frames up to one that was entered
 * from C (PB_PY_ENTRY: every frame before 3.11, the entry frame or the one below the shim since). So the
 * loop's frame gives way to its Python frames, and what is native between them stays where it is. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "remote/native/unwind.h"
#include "remote/python/reader.h"

struct pb_merged {
    bool python;
    size_t index; /* in the frames given */
};

enum pb_merge {
    PB_MERGE_FULL,    /* every call of the loop has its Python frames */
    PB_MERGE_PARTIAL, /* the native stack ends early: what is left of the Python frames comes last */
    PB_MERGE_APART, /* they do not fit: all native frames, then all Python frames; to be said to the reader */
};

/* Innermost first. ret has room for native.n + python.n; *ret_n: how many there are. flags: of the native
 * stack. Native frames that are part of the loop's own function (inlined into it) are left out. */
enum pb_merge pb_merge_stacks(const struct pb_native_frame *native, size_t nnative, unsigned flags,
                              const struct pb_py_frame *python, size_t npython, bool python_truncated,
                              struct pb_merged *ret, size_t *ret_n);
