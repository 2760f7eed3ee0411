/* flight_recorder: torch's Flight Recorder in a target, found from outside: no agent, no call of torch.
 *
 * control/flight.h reads it. Works on processes that hang or are stopped, and on cores. */
#pragma once

#include "control/flight.h"

#include <stdbool.h>

struct pb_err;
struct pb_source;

/* gpu: that of NCCL, else that of gloo and others. The source must outlive *ret. -ENOENT: the process has
 * no such library; -ENODATA: its symbol table was removed, or has no recorder. */
int pb_recorder_find(struct pb_source *source, bool gpu, struct pb_flight *ret, struct pb_err *err);

/* All entries that are there, the oldest first. -ENOMEM. */
int pb_recorder_each(const struct pb_flight *f, const struct pb_flight_head *head,
                     void (*take)(void *arg, const struct pb_flight_entry *e), void *arg);
