/* gpu: what NVML reports of the GPUs of this machine. The library is loaded at run time, so nothing is
 * missing on a machine without a GPU. Only in our own processes: NVML takes memory and threads.
 *
 * One thread at a time. With a faulty driver a call may never return: a caller that must not wait makes these
 * calls from a thread of its own. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_gpus;

struct pb_gpu_sample {
    /* NaN: the GPU or the driver does not report it. */
    double util, memory_util;         /* percent of time: a kernel ran, memory was read or written */
    double memory_used, memory_total; /* bytes */
    double temperature, power, clock; /* C, W, MHz */
    /* Since the last sample; NaN in the first. Percent, and MB/s of both directions. */
    double active, sm, occupancy, tensor, dram, pcie, nvlink;
    double power_limit, ecc; /* W; memory errors that could not be corrected, since the driver started */
    char name[96], uuid[96]; /* "": not known */
    char slowed[96];         /* why its clock is lowered; "": it is not, or not known */
    const char *doing;       /* NULL: not known */
};

/* Opens NVML. -ENOENT: it is not installed; -ENODEV: it finds no GPU; -EIO with its own message: it
 * failed. */
int pb_gpus_open(struct pb_gpus **ret, struct pb_err *err);
void pb_gpus_close(struct pb_gpus *g);

unsigned pb_gpus_count(const struct pb_gpus *g);

/* Reads the state of GPU i. -EIO: the GPU does not answer (it is lost). */
int pb_gpus_sample(struct pb_gpus *g, unsigned i, struct pb_gpu_sample *ret);

/* Bytes that the process holds on GPU i; -1: none, or not known (NVML has the pids outside of containers). */
int64_t pb_gpus_memory_of(struct pb_gpus *g, unsigned i, pid_t pid);
