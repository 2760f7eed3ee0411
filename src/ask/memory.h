/* memory: what a process takes of the memory, put together from the kernel, from Python's own structures and
 * from what was recorded. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"
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

struct pb_memory_answer {
    int result; /* negative errno: err says why, and there is no more */
    struct pb_err err;
    struct pb_memory memory;
};

/* Of all targets, some at a time, each in a child (apart.h); ret has room for them. -ENOMEM. */
int pb_memory_ask(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_memory_answer *ret);
