/* heap: what CPython's allocator of small blocks and its collector have, read from outside.
 *
 * Nothing is stopped and the GIL is not asked for: numbers of a process that runs may be some microseconds
 * apart. What cannot be read is PB_UNKNOWN, never a guess. Up to 3.11 the allocator's variables have no name
 * that a process could be asked by: they are looked for once, in the data of the interpreter, and known by
 * what they lead to. */
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

/* What was found once. Zeros before the first use; nothing to release. */
struct pb_py_heap {
    bool skip_blocks; /* the caller's: do not count them this time; that reads a word of each 16 KB of the
                         heap */
    bool searched;
    uint64_t variables[8]; /* all that lead to the arenas; the least leads to the first */
    unsigned nvariables;
    uint64_t generations; /* 3.6 */
};

/* -ESRCH: the process is gone; else 0 with as much as is known. */
int pb_py_memory(struct pb_py *py, struct pb_py_heap *heap, struct pb_py_memory *ret);
