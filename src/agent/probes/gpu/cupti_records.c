/* cupti_records: see cupti.h. */
#include "agent/probes/gpu/cupti.h"

#include <errno.h>
#include <string.h>

/* Bytes from the beginning of a record; all begin with their kind. */
enum {
    KERNEL_REGISTERS = 6,
    KERNEL_START = 16,
    KERNEL_END = 24,
    KERNEL_DEVICE = 40,
    KERNEL_STREAM = 48,
    KERNEL_GRID = 52,
    KERNEL_BLOCK = 64,
    KERNEL_SHARED_STATIC = 76,
    KERNEL_SHARED_DYNAMIC = 80,
    KERNEL_CORRELATION = 92,
    KERNEL_NAME = 104,
    KERNEL_GRAPH = 156,
    KERNEL_READ = 160,

    COPY_KIND = 4,
    COPY_FROM = 5,
    COPY_TO = 6,
    COPY_BYTES = 8, /* this and the next also of a set */
    COPY_START = 16,
    COPY_END = 24,
    COPY_DEVICE = 32,
    COPY_STREAM = 40,
    COPY_CORRELATION = 44,
    COPY_GRAPH = 72,
    COPY_READ = 76,
};

enum { PAGEABLE = 1 }; /* a kind of memory */

int pb_cupti_is_known(uint32_t version)
{
    return (version >= 17 && version <= 28) || (version >= 130000 && version < 130500);
}

static uint32_t word(const char *at, size_t offset)
{
    uint32_t value;

    memcpy(&value, at + offset, sizeof(value));
    return value;
}

static uint64_t long_word(const char *at, size_t offset)
{
    uint64_t value;

    memcpy(&value, at + offset, sizeof(value));
    return value;
}

static void read_kernel(const char *at, struct pb_cupti_record *ret)
{
    uint64_t name = long_word(at, KERNEL_NAME);

    ret->start = long_word(at, KERNEL_START);
    ret->end = long_word(at, KERNEL_END);
    ret->device = word(at, KERNEL_DEVICE);
    ret->stream = word(at, KERNEL_STREAM);
    ret->correlation = word(at, KERNEL_CORRELATION);
    ret->graph = word(at, KERNEL_GRAPH);
    memcpy(&ret->name, &name, sizeof(name));
    memcpy(&ret->registers, at + KERNEL_REGISTERS, sizeof(ret->registers));
    ret->blocks = (uint64_t)word(at, KERNEL_GRID) * word(at, KERNEL_GRID + 4) * word(at, KERNEL_GRID + 8);
    ret->threads = word(at, KERNEL_BLOCK) * word(at, KERNEL_BLOCK + 4) * word(at, KERNEL_BLOCK + 8);
    ret->shared = word(at, KERNEL_SHARED_STATIC) + word(at, KERNEL_SHARED_DYNAMIC);
}

static void read_copy(const char *at, struct pb_cupti_record *ret)
{
    ret->start = long_word(at, COPY_START);
    ret->end = long_word(at, COPY_END);
    ret->device = word(at, COPY_DEVICE);
    ret->stream = word(at, COPY_STREAM);
    ret->correlation = word(at, COPY_CORRELATION);
    ret->graph = word(at, COPY_GRAPH);
    ret->bytes = long_word(at, COPY_BYTES);
    if (ret->kind == PB_CUPTI_COPY) {
        ret->copy = (uint8_t)at[COPY_KIND];
        ret->from = (uint8_t)at[COPY_FROM];
        ret->to = (uint8_t)at[COPY_TO];
    }
}

int pb_cupti_read(const void *at, size_t size, struct pb_cupti_record *ret)
{
    if (size < sizeof(uint32_t))
        return -EINVAL;
    uint32_t kind = word(at, 0);
    if (kind != PB_CUPTI_KERNEL && kind != PB_CUPTI_COPY && kind != PB_CUPTI_SET)
        return 0;
    if (size < (kind == PB_CUPTI_KERNEL ? (size_t)KERNEL_READ : (size_t)COPY_READ))
        return -EINVAL;
    *ret = (struct pb_cupti_record){.kind = (enum pb_cupti_kind)kind};
    if (kind == PB_CUPTI_KERNEL)
        read_kernel(at, ret);
    else
        read_copy(at, ret);
    return 1;
}

const char *pb_cupti_copy_name(const struct pb_cupti_record *record)
{
    static const char *const names[] = {NULL,
                                        "host to device",
                                        "device to host",
                                        "host to array",
                                        "array to host",
                                        "array to array",
                                        "array to device",
                                        "device to array",
                                        "device to device",
                                        "host to host",
                                        "device to other device"};

    if (record->kind == PB_CUPTI_SET)
        return "set";
    return record->copy < sizeof(names) / sizeof(names[0]) ? names[record->copy] : NULL;
}

int pb_cupti_is_pageable(const struct pb_cupti_record *record)
{
    return record->kind == PB_CUPTI_COPY && (record->from == PAGEABLE || record->to == PAGEABLE);
}
