/* memory: what a process takes of the memory, put together from the kernel, from Python's own structures and
 * from what was recorded. */
#pragma once

#include "ask/targets.h"
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

int pb_memory_take(const struct pb_ask *ask, const struct pb_target *target, struct pb_memory *ret,
                   struct pb_err *err);
