/* memory: the memory that a process uses, from the kernel, from Python's own structures and from recorded
 * rows. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"
#include "remote/python/heap.h"

enum { PB_MEMORY_POINTS = 60, PB_MEMORY_MAPS = 5, PB_MEMORY_JUDGED_S = 60 };

/* Bytes; NaN: not known. */
struct pb_memory {
    char label[PB_LABEL_MAX];
    pid_t pid;
    bool dead;
    double rss, peak, vms, swap; /* of an ended process: the last recorded values, and the greatest */
    struct pb_py_memory python;  /* now, or as last recorded */
    double torch_cpu, torch_cuda, torch_cuda_reserved, gpu;
    const char *torch_note; /* why torch's memory is unknown although torch is loaded; else NULL */
    /* Over the recorded time; rows 0: nothing was recorded. */
    unsigned rows;
    double recorded_s, growth; /* bytes a minute, 0: steady; NaN: recorded for less than PB_MEMORY_JUDGED_S */
    double growth_s;           /* the time over which growth is measured: the last part of the recording */
    /* The line that holds most of the allocations of that time, if it explains a good part of the growth. */
    bool sampled; /* memory_allocations has rows */
    char function[160], file[160];
    int line;
    double held; /* NaN: no line explains it */
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
    int result; /* negative errno: err says why, and the rest is unset */
    struct pb_err err;
    struct pb_memory memory;
};

/* Only what can be read from outside at this moment: rss, python and gpu of `ret`. */
int pb_memory_now(const struct pb_ask *ask, pid_t pid, struct pb_memory *ret, struct pb_err *err);

/* Asks for all targets, some at a time, each in a child (task.h); ret has room for them. -ENOMEM. */
int pb_memory_ask(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_memory_answer *ret);
