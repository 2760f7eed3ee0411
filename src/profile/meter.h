/* meter: what processes and GPUs take, once a second, into the tables of a recording.
 *
 *   python.memory   a row a process: memory in RAM, Python's heap and collector, memory on GPUs
 *   gpu_metrics     a row a GPU
 * Read from outside by a thread of its own, so that neither a large heap nor a driver that hangs holds up the
 * sampler. Nothing is asked of the processes. */
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

/* Ends the thread. False: it does not come back from the driver, and the arena must not be unmapped. NULL is
 * allowed. */
bool pb_meter_stop(struct pb_meter *m);
