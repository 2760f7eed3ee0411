/* watchdog: keeps all stacks, with locals, of a process that makes no progress, before a person kills it.
 *
 * Progress is that the main thread is seen elsewhere than before (another line, another function, another
 * instruction of a line), or that it wakes up again and again: a thread that polls does not stand still. A
 * process is told of once each time it comes to a stand. */
#pragma once

#include <stdint.h>

#include "profile/sampler.h"
#include "profile/store.h"

struct pb_watchdog {
    uint64_t limit_ns; /* 0: off */
    pid_t *told;       /* processes that stand, and were told of */
    size_t n, cap;
    unsigned hangs; /* so far */
};

/* After a tick, once a second or so. */
void pb_watchdog_check(struct pb_watchdog *w, struct pb_sampler *s, struct pb_store *store);
void pb_watchdog_done(struct pb_watchdog *w);
