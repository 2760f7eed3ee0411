/* gpu: what NVML says of the GPUs of this machine. The library is looked for when it is wanted: there is
 * nothing to link, and nothing to be missing where there is no GPU. Only ever in a process of ours: it takes
 * memory and threads.
 *
 * One thread at a time. A driver in trouble may not come back from a call: a caller that must not wait
 * calls this from a thread of its own. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_gpus;

struct pb_gpu_sample {
    /* NaN where the GPU or the driver does not say. */
    double util, memory_util;         /* percent of time: a kernel ran, memory was read or written */
    double memory_used, memory_total; /* bytes */
    double temperature, power, clock; /* C, W, MHz */
    char name[96], uuid[96];          /* "": not known */
};

/* Opens NVML. -ENOENT: there is none; -ENODEV: it finds no GPU; -EIO with its own words: it fails. */
int pb_gpus_open(struct pb_gpus **ret, struct pb_err *err);
void pb_gpus_close(struct pb_gpus *g);

unsigned pb_gpus_count(const struct pb_gpus *g);

/* What GPU i says now. -EIO: it says nothing at all (it is lost). */
int pb_gpus_sample(struct pb_gpus *g, unsigned i, struct pb_gpu_sample *ret);

/* Bytes that the process holds on GPU i; -1: it holds none, or nobody says (NVML knows processes by their
 * pids outside of containers). */
int64_t pb_gpus_memory_of(struct pb_gpus *g, unsigned i, pid_t pid);
