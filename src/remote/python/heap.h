/* heap: the state of CPython's small block allocator and garbage collector, read from outside.
 *
 * Nothing is stopped and the GIL is not taken: numbers of a running process may be some microseconds apart. A
 * value that cannot be read is PB_UNKNOWN, never a guess. Up to 3.11 no symbol leads to the allocator's
 * variables: they are searched for once, in the data of the interpreter, and recognised by what they point
 * to. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_py;

#define PB_UNKNOWN (-1)

struct pb_py_memory {
    int64_t heap_arenas; /* regions that the allocator has from the system */
    int64_t heap_bytes;  /* their size */
    int64_t heap_blocks; /* blocks of at most 512 bytes that are in use */
    int64_t gc[3];       /* as gc.get_count() has them */
};

/* The result of the search. Zeros before the first use; nothing to release. */
struct pb_py_heap {
    bool skip_blocks; /* the caller's: do not count them this time; that reads a word of each 16 KB of the
                         heap */
    bool searched;
    uint64_t variables[8]; /* all that point to the arenas; the lowest points to the first */
    unsigned nvariables;
    uint64_t generations; /* 3.6 */
};

/* -ESRCH: the process is gone; else 0 with everything that is known. */
int pb_py_memory(struct pb_py *py, struct pb_py_heap *heap, struct pb_py_memory *ret);
