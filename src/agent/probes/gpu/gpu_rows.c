/* gpu_rows: rows of gpu.kernels, gpu.copies and gpu.profiles. */
#include "agent/core/own_memory.h"
#include "agent/core/recorder.h"
#include "agent/probes/gpu/gpu_profile.h"
#include "control/tables.def"
#include "table/arena.h"
#include "table/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#define NAMES_BITS 8
#define NAMES      (1 << NAMES_BITS)
#define NAME_BYTES 2048

#define KERNEL_ID(id, ...)  KERNEL_##id,
#define COPY_ID(id, ...)    COPY_##id,
#define PROFILE_ID(id, ...) PROFILE_##id,
enum { PB_TABLE_GPU_KERNELS(PB_NOTHING, KERNEL_ID) KERNEL_COLUMNS };
enum { PB_TABLE_GPU_COPIES(PB_NOTHING, COPY_ID) COPY_COLUMNS };
enum { PB_TABLE_GPU_PROFILES(PB_NOTHING, PROFILE_ID) PROFILE_COLUMNS };
static const struct pb_column kernel_columns[] = {PB_COLUMNS_OF(PB_TABLE_GPU_KERNELS)};
static const struct pb_column copy_columns[] = {PB_COLUMNS_OF(PB_TABLE_GPU_COPIES)};
static const struct pb_column profile_columns[] = {PB_COLUMNS_OF(PB_TABLE_GPU_PROFILES)};
static struct pb_known_table kernels, copies, profiles;

/* Names of kernels by their addresses in the program, in memory that is taken with the first recording. */
static struct known_name {
    const char *at;
    struct pb_string_place place;
    size_t length;
    char text[NAME_BYTES];
} * names;

int pb_gpu_rows_begin(void)
{
    if (!names)
        names = pb_pages_map(NAMES * sizeof(*names));
    for (int i = 0; names && i < NAMES; i++)
        names[i].at = NULL; /* a module may have been unloaded since, and another one be there */
    return names ? 0 : -ENOMEM;
}

void pb_gpu_rows_done(void)
{
    if (names)
        munmap(names, NAMES * sizeof(*names));
    names = NULL;
}

/* Read through the kernel, and not beyond 256 bytes at once: memory may end after the name. */
static size_t read_name(const char *name, char *ret, size_t size)
{
    size_t length = 0;

    while (length < size) {
        size_t piece = 256 - ((uintptr_t)(name + length) & 255);
        piece = piece < size - length ? piece : size - length;
        const struct iovec from = {(void *)(uintptr_t)(name + length), piece};
        if (pb_own_memory_read(&from, 1, ret + length) != (ssize_t)piece)
            return length;
        const char *end = memchr(ret + length, '\0', piece);
        if (end)
            return (size_t)(end - ret);
        length += piece;
    }
    return length;
}

static void set_name(struct pb_row *row, const char *at)
{
    struct known_name *name = &names[(uintptr_t)at * UINT64_C(0x9e3779b97f4a7c15) >> (64 - NAMES_BITS)];

    if (!at)
        return;
    if (name->at != at) {
        name->at = at;
        name->length = read_name(at, name->text, sizeof(name->text));
        name->place = (struct pb_string_place){0};
    }
    if (name->length)
        pb_set_string_again(row, KERNEL_NAME, name->text, name->length, &name->place);
}

static int add_kernel(const struct pb_cupti_record *r, const struct pb_gpu_clock *clock)
{
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_GPU_KERNELS),
                                       .comment = PB_COMMENT_OF(PB_TABLE_GPU_KERNELS),
                                       .columns = kernel_columns,
                                       .ncolumns = KERNEL_COLUMNS,
                                       .share = 16};
    struct pb_row row;
    uint32_t inside;

    int e = pb_recorder_begin_row(&spec, &kernels, &row, &inside);
    if (e < 0)
        return e;
    pb_set_timestamp(&row, KERNEL_TIMESTAMP, pb_gpu_clock_mono(clock, r->start));
    pb_set_f64(&row, KERNEL_DURATION, pb_gpu_clock_ns(clock, r->end - r->start) / 1e3);
    set_name(&row, r->name);
    pb_set_i32(&row, KERNEL_DEVICE, (int32_t)r->device);
    pb_set_u32(&row, KERNEL_STREAM, r->stream);
    pb_set_u64(&row, KERNEL_BLOCKS, r->blocks);
    pb_set_u32(&row, KERNEL_THREADS, r->threads);
    pb_set_u32(&row, KERNEL_SHARED, r->shared);
    pb_set_u16(&row, KERNEL_REGISTERS, r->registers);
    if (r->graph)
        pb_set_u32(&row, KERNEL_GRAPH, r->graph);
    pb_set_u32(&row, KERNEL_CORRELATION, r->correlation);
    e = pb_row_commit(&row);
    pb_recorder_leave(inside);
    return e;
}

static int add_copy(const struct pb_cupti_record *r, const struct pb_gpu_clock *clock)
{
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_GPU_COPIES),
                                       .comment = PB_COMMENT_OF(PB_TABLE_GPU_COPIES),
                                       .columns = copy_columns,
                                       .ncolumns = COPY_COLUMNS,
                                       .share = 4};
    const char *name = pb_cupti_copy_name(r);
    struct pb_row row;
    uint32_t inside;

    int e = pb_recorder_begin_row(&spec, &copies, &row, &inside);
    if (e < 0)
        return e;
    pb_set_timestamp(&row, COPY_TIMESTAMP, pb_gpu_clock_mono(clock, r->start));
    pb_set_f64(&row, COPY_DURATION, pb_gpu_clock_ns(clock, r->end - r->start) / 1e3);
    if (name)
        pb_set_string(&row, COPY_KIND, name, strlen(name));
    pb_set_u64(&row, COPY_BYTES, r->bytes);
    pb_set_bool(&row, COPY_PAGEABLE, pb_cupti_is_pageable(r));
    pb_set_i32(&row, COPY_DEVICE, (int32_t)r->device);
    pb_set_u32(&row, COPY_STREAM, r->stream);
    if (r->graph)
        pb_set_u32(&row, COPY_GRAPH, r->graph);
    pb_set_u32(&row, COPY_CORRELATION, r->correlation);
    e = pb_row_commit(&row);
    pb_recorder_leave(inside);
    return e;
}

void pb_gpu_rows_add(const struct pb_cupti_record *record, const struct pb_gpu_clock *clock,
                     struct pb_gpu_totals *totals)
{
    int is_kernel = record->kind == PB_CUPTI_KERNEL;

    if (!record->start || record->end < record->start) {
        totals->unfinished++;
        return;
    }
    int r = is_kernel ? add_kernel(record, clock) : add_copy(record, clock);
    totals->lost += r < 0;
    totals->kernels += r >= 0 && is_kernel;
    totals->copies += r >= 0 && !is_kernel;
}

void pb_gpu_rows_end(const struct pb_gpu_recording *recording, const struct pb_gpu_totals *totals)
{
    const struct pb_table_spec spec = {.name = PB_NAME_OF(PB_TABLE_GPU_PROFILES),
                                       .comment = PB_COMMENT_OF(PB_TABLE_GPU_PROFILES),
                                       .columns = profile_columns,
                                       .ncolumns = PROFILE_COLUMNS};
    struct pb_row row;
    uint32_t inside;

    if (pb_recorder_begin_row(&spec, &profiles, &row, &inside) < 0)
        return;
    pb_set_timestamp(&row, PROFILE_TIMESTAMP, recording->begun);
    pb_set_f64(&row, PROFILE_DURATION, (double)(recording->ended - recording->begun) / 1e6);
    pb_set_u64(&row, PROFILE_KERNELS, totals->kernels);
    pb_set_u64(&row, PROFILE_COPIES, totals->copies);
    pb_set_u64(&row, PROFILE_UNFINISHED, totals->unfinished);
    pb_set_u64(&row, PROFILE_LOST, totals->lost);
    pb_set_u32(&row, PROFILE_CUPTI, recording->version);
    if (recording->why[0])
        pb_set_string(&row, PROFILE_WHY, recording->why, strlen(recording->why));
    pb_recorder_end_row(&row, inside);
}
