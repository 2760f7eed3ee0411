/* watch: the service keeps watch: every process that it serves is recorded at a low rate, with a watchdog for
 * those that stand still, and what they record is archived, as far as it was asked to.
 *
 * Each is a command in a child of its own for each process (record, archive), which ends with the process or
 * with the service: a process that hangs, dies or lies holds up no other. One thread looks for processes that
 * are new and for commands that ended. */
#pragma once

#include <stdbool.h>

struct pb_err;
struct pb_service;
struct pb_watch;

struct pb_watch_plan {
    const char *rate;      /* of samples, in Hz; NULL: nothing is recorded */
    const char *watchdog;  /* with rate: after how long without a change all stacks are kept; NULL: never */
    const char *retention; /* with archive: days; NULL: what the process's settings say */
    bool archive;
};

/* 0 with NULL where there is nothing to watch. */
int pb_watch_new(const struct pb_service *s, const struct pb_watch_plan *plan, struct pb_watch **ret,
                 struct pb_err *err);
/* Ends its commands, which write what they have, and waits for them. NULL is allowed. */
void pb_watch_free(struct pb_watch *w);
