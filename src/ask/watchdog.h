/* watchdog: records all stacks, with locals, of a process that makes no progress, before a person kills it.
 *
 * Progress means that the main thread is seen at another place (line, function, or instruction of a line), or
 * that it wakes up repeatedly: a thread that polls makes progress. Each hang is recorded once. */
#pragma once

#include <stdint.h>

#include "profile/sampler.h"
#include "profile/store.h"

struct pb_watchdog {
    uint64_t limit_ns; /* 0: off */
    pid_t *recorded;   /* processes that hang, and were recorded */
    size_t n, cap;
    unsigned hangs; /* so far */
};

/* Called after a tick, about once a second. */
void pb_watchdog_check(struct pb_watchdog *w, struct pb_sampler *s, struct pb_store *store);
void pb_watchdog_done(struct pb_watchdog *w);
