/* allocations: what the files of the probe memory_allocations share (docs/memory.md).
 *
 *   allocations.c         the probe: start, stop, and our functions in Python's allocator
 *   allocations_sample.c  which allocations are recorded, their rows, and which of them are still alive
 *   allocations_tensor.c  tensors of torch, whose memory is not Python's
 *   allocations_cuda.c    memory of GPUs, out of torch's memory history
 *
 * The GIL of the main interpreter is the lock of everything here. Python's allocator is called by others too,
 * in spite of its rules or in interpreters with a GIL of their own: they get as far as `left` and the filter,
 * which are words and bytes whose loss costs a sample. */
#pragma once

#include "agent/python/python.h"

#include <stddef.h>
#include <stdint.h>

#define PB_ALLOC_FILTER_BITS 15
#define PB_ALLOC_IDLE        (INT64_MAX / 2) /* of `left`: nothing is sampled for the next exabytes */

struct pb_allocations {
    uint32_t enabled;   /* any thread */
    int64_t left;       /* bytes of Python's until the next sample */
    int64_t left_other; /* the same of tensors */
    uint64_t mean;      /* bytes between two samples */
    uint64_t samples;   /* rows ever */
    uint32_t alive;     /* of them, followed and not freed */
    void *newest;       /* block of Python's objects that was allocated last */
    /* How many blocks that are followed have this hash, 255 for many: what most calls of free look at. */
    uint8_t filter[1 << PB_ALLOC_FILTER_BITS];
};
extern struct pb_allocations pb_allocations;

/* Where something was allocated: the innermost function, and the innermost that is of no library. Holds
 * references; zeros are none. */
struct pb_alloc_place {
    pb_pyobject *code, *caller;
    int at, caller_at;
};

static inline uint8_t *pb_alloc_filter(const void *block)
{
    return &pb_allocations.filter[(uint64_t)(uintptr_t)block * UINT64_C(0x9e3779b97f4a7c15) >>
                                  (64 - PB_ALLOC_FILTER_BITS)];
}

/* allocations_sample.c. begin maps the memory, end gives it back: both with the GIL. stdlib: the folder of
 * Python's own modules. */
int pb_alloc_begin(uint64_t mean, const char *stdlib);
void pb_alloc_end(const struct pb_python *py);
/* left is below zero. Any thread. */
void pb_alloc_sampled(void *block, size_t size);
/* The filter has the block. Any thread. */
void pb_alloc_freed(const void *block);

/* With the GIL. place: 0 where no Python code runs. release drops its references, which may run code of the
 * program. */
int pb_alloc_place(const struct pb_python *py, struct pb_alloc_place *ret);
void pb_alloc_place_release(const struct pb_python *py, struct pb_alloc_place *place);
/* How many bytes a sample of that size represents; 0: it is not sampled. *left as above. */
uint64_t pb_alloc_choose(int64_t *left, uint64_t size);
/* A place given as text; NULL: not known. */
struct pb_alloc_texts {
    const char *function, *file, *caller; /* caller: a file */
    int line, caller_line;
};
struct pb_alloc_row {
    const char *kind, *device; /* device NULL: none */
    uint64_t bytes, weight;
    int64_t when;                       /* pb_clock_mono */
    const void *block;                  /* whose end is its end; counted in the filter from here on */
    const struct pb_alloc_texts *texts; /* instead of a place */
};
/* place NULL: another thread's, as `texts` has it. */
void pb_alloc_write(const struct pb_python *py, const struct pb_alloc_place *place,
                    const struct pb_alloc_row *what);
/* Whether the file is Python's own, or of an installed package. */
int pb_alloc_is_library(const char *file);
void pb_alloc_filter_add(const void *block);
void pb_alloc_filter_remove(const void *block);

/* allocations_tensor.c, with the GIL. put may be called over and over; why: why there are none ("": none is
 * known yet). */
void pb_alloc_tensors_put(const struct pb_python *py, char *why, size_t why_size);
void pb_alloc_tensors_take(const struct pb_python *py);
int pb_alloc_tensors_are_in(void);  /* any thread */
int pb_alloc_is_torch_loaded(void); /* a thread of ours, without the GIL */
/* The end of a block, from any thread, with or without the GIL. */
void pb_alloc_tensors_freed(const void *block);
void pb_alloc_tensors_forget(void); /* in a child of fork */

/* allocations_cuda.c: look, end and forget with the GIL. why: as above, "" while rows come. end: when the
 * probe is off; forget: in a child of fork. */
void pb_alloc_cuda_want(int yes); /* any thread */
int pb_alloc_cuda_is_due(void);   /* any thread */
void pb_alloc_cuda_look(const struct pb_python *py, char *why, size_t why_size);
void pb_alloc_cuda_end(const struct pb_python *py);
void pb_alloc_cuda_forget(void);
