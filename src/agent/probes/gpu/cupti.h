/* cupti: what is used of CUPTI, NVIDIA's library for profilers: its functions, found by name in the library
 * that the program has loaded, and its records, read by layout. No header of it is needed.
 *
 * The layout is that of every release from CUDA 11.7 to 13.4: newer ones only add fields at the end of a
 * record. A library of another version is not used. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Its numbers. */
enum pb_cupti_kind { PB_CUPTI_COPY = 1, PB_CUPTI_SET = 2, PB_CUPTI_KERNEL = 10 };
#define PB_CUPTI_FLUSH_FORCED 1u

typedef void (*pb_cupti_requested)(uint8_t **buffer, size_t *size, size_t *records);
typedef void (*pb_cupti_completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                   size_t valid);

struct pb_cupti {
    void *library;
    int (*get_version)(uint32_t *ret);
    int (*get_timestamp)(uint64_t *ret);
    int (*get_result_string)(int result, const char **ret);
    int (*register_callbacks)(pb_cupti_requested requested, pb_cupti_completed completed);
    int (*enable)(int kind);
    int (*disable)(int kind);
    int (*flush_all)(uint32_t flag);
    int (*get_next_record)(uint8_t *buffer, size_t valid, void **record);
    int (*get_dropped)(void *context, uint32_t stream, size_t *ret);
    uint32_t version;
};

/* Opens the one library of that name that the program has loaded; close gives it back. May wait for the
 * loader. -errno with a sentence in why. */
int pb_cupti_open(struct pb_cupti *ret, char *why, size_t why_size);
void pb_cupti_close(struct pb_cupti *cupti);

/* Lets the calling thread do what CUPTI needs while another thread captures a CUDA graph, without harm to
 * that. */
void pb_cupti_relax_captures(void);

/* Whether the records of that version are laid out as read below. */
int pb_cupti_is_known(uint32_t version);

/* Of a record. */
struct pb_cupti_record {
    enum pb_cupti_kind kind;
    uint64_t start, end; /* ns, of CUPTI's clock; 0: it is not over */
    uint32_t device, stream, correlation, graph;
    const char *name;         /* of a kernel, as the linker has it, in the program's memory; may be NULL */
    uint64_t blocks;          /* of a kernel */
    uint32_t threads, shared; /* of a block of a kernel: threads, bytes */
    uint16_t registers;
    uint64_t bytes;         /* of a copy or set */
    uint8_t copy, from, to; /* of a copy: its kind, and kinds of memory */
};

/* Reads the record at `at`, of which `size` bytes may be read. 1: read; 0: of another kind; -EINVAL: it is
 * cut off. */
int pb_cupti_read(const void *at, size_t size, struct pb_cupti_record *ret);

/* "host to device", from its number. */
const char *pb_cupti_copy_name(const struct pb_cupti_record *record);

/* Whether a side of the copy is memory of the host that is not pinned. */
int pb_cupti_is_pageable(const struct pb_cupti_record *record);

/* torch_profiler.c: torch's own profiler, which uses CUPTI too. find: -errno with a sentence in why: whether
 * it does cannot be known here. is_active: it records, or is about to; takes no lock and not the GIL. */
struct pb_torch_profiler {
    void **place; /* of the pointer to it, NULL until it was first used */
    void **functions;
};
int pb_torch_profiler_find(struct pb_torch_profiler *ret, char *why, size_t why_size);
int pb_torch_profiler_is_active(const struct pb_torch_profiler *profiler);
