/* cupti_layout: where CUPTI writes the fields of its records, for the tests that make records: by hand
 * (agent_cupti.c), and in a stand-in for the library (../integration/targets/stand_in_cupti.c). The offsets
 * are those that a compiler gave for the headers of CUDA 11.7 to 13.4, and not taken from the code that reads
 * them. */
#pragma once

#include <stdint.h>
#include <string.h>

enum {
    CUPTI_COPY = 1,
    CUPTI_SET = 2,
    CUPTI_OTHER = 7, /* one that is not read */
    CUPTI_KERNEL = 10,
};

/* In CUDA 13.0. */
enum { CUPTI_COPY_SIZE = 96, CUPTI_SET_SIZE = 88, CUPTI_KERNEL_SIZE = 216, CUPTI_OTHER_SIZE = 40 };

struct cupti_kernel {
    uint64_t start, end;
    uint32_t device, stream, correlation, graph;
    uint16_t registers;
    int32_t grid[3], block[3], static_shared, dynamic_shared;
    const char *name;
};

/* copy, from, to: copyKind, srcKind and dstKind of a copy; of a set they are 0. */
struct cupti_transfer {
    uint32_t kind;
    uint8_t copy, from, to;
    uint64_t bytes, start, end;
    uint32_t device, stream, correlation, graph;
};

#define CUPTI_PUT(record, at, type, value)                                                                   \
    do {                                                                                                     \
        type cupti_value = (type)(value);                                                                    \
        memcpy((char *)(record) + (at), &cupti_value, sizeof(cupti_value));                                  \
    } while (0)

static inline void cupti_put_kind(void *record, uint32_t kind)
{
    CUPTI_PUT(record, 0, uint32_t, kind);
}

/* Fields that are not named keep their bytes. */
static inline void cupti_put_kernel(void *record, const struct cupti_kernel *k)
{
    cupti_put_kind(record, CUPTI_KERNEL);
    CUPTI_PUT(record, 6, uint16_t, k->registers);
    CUPTI_PUT(record, 16, uint64_t, k->start);
    CUPTI_PUT(record, 24, uint64_t, k->end);
    CUPTI_PUT(record, 40, uint32_t, k->device);
    CUPTI_PUT(record, 48, uint32_t, k->stream);
    for (unsigned i = 0; i < 3; i++) {
        CUPTI_PUT(record, 52 + 4 * i, int32_t, k->grid[i]);
        CUPTI_PUT(record, 64 + 4 * i, int32_t, k->block[i]);
    }
    CUPTI_PUT(record, 76, int32_t, k->static_shared);
    CUPTI_PUT(record, 80, int32_t, k->dynamic_shared);
    CUPTI_PUT(record, 92, uint32_t, k->correlation);
    CUPTI_PUT(record, 104, const char *, k->name);
    CUPTI_PUT(record, 156, uint32_t, k->graph);
}

static inline void cupti_put_transfer(void *record, const struct cupti_transfer *t)
{
    cupti_put_kind(record, t->kind);
    CUPTI_PUT(record, 4, uint8_t, t->copy);
    CUPTI_PUT(record, 5, uint8_t, t->from);
    CUPTI_PUT(record, 6, uint8_t, t->to);
    CUPTI_PUT(record, 8, uint64_t, t->bytes);
    CUPTI_PUT(record, 16, uint64_t, t->start);
    CUPTI_PUT(record, 24, uint64_t, t->end);
    CUPTI_PUT(record, 32, uint32_t, t->device);
    CUPTI_PUT(record, 40, uint32_t, t->stream);
    CUPTI_PUT(record, 44, uint32_t, t->correlation);
    CUPTI_PUT(record, 72, uint32_t, t->graph);
}
