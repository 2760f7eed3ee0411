/* memory: what a process takes of the memory, put together from the kernel, from Python's own structures and
 * from what was recorded: memory_take.c takes it, memory_print.c shows it. */
#pragma once

#include "cli/cli.h"
#include "remote/python/heap.h"

enum { PB_MEMORY_POINTS = 60, PB_MEMORY_MAPS = 5 };

/* Bytes; NaN: not known. */
struct pb_memory {
    char label[PB_LABEL_MAX];
    pid_t pid;
    bool dead;
    double rss, peak, vms, swap; /* of one that has ended: as last recorded, and the most recorded */
    struct pb_py_memory python;  /* now, or as last recorded */
    double torch_cpu, torch_cuda, torch_cuda_reserved, gpu;
    const char *torch_note; /* why torch's are not known, where it is there; NULL */
    /* Over the recorded time; rows 0: nothing is recorded. */
    unsigned rows;
    double recorded_s, growth; /* bytes a minute */
    double points[PB_MEMORY_POINTS];
    unsigned npoints;
    struct {
        char path[160];
        double rss, size;
        unsigned count;
    } maps[PB_MEMORY_MAPS];
    unsigned nmaps;
};

int pb_memory_take(const struct pb_call *call, const struct pb_target *target, struct pb_memory *ret,
                   struct pb_err *err);

void pb_memory_print(const struct pb_memory *m);
void pb_memory_print_json(const struct pb_memory *m);

/* The same in rows. */
struct pb_rows;
extern const char *const pb_memory_columns[];
extern const size_t pb_memory_ncolumns;
void pb_memory_add_row(struct pb_rows *rows, const struct pb_memory *m);
