/* meter: the memory of processes and GPUs, once a second, into the tables of a recording.
 *
 *   python.memory   a row per process: memory in RAM, Python's heap and collector, memory on GPUs
 *   gpu_metrics     a row per GPU
 * Read from outside by a thread of its own, so that neither a large heap nor a hung driver delays the
 * sampler. The processes themselves are not involved. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pb_arena;
struct pb_err;
struct pb_meter;

/* Makes python.memory in the arena, which must outlive the meter, and starts. A machine without GPUs has no
 * gpu_metrics. */
int pb_meter_start(struct pb_arena *arena, const pid_t *pids, size_t n, struct pb_meter **ret,
                   struct pb_err *err);

/* Ends the thread. False: the thread hangs in the driver, and the arena must not be unmapped. NULL is
 * allowed. */
bool pb_meter_stop(struct pb_meter *m);
