/* autorecord: records every process that the service answers for, at a low rate, with a watchdog for those
 * that stand still, and archives what they record (serve --record, --watchdog, --archive).
 *
 * Each process has its own commands (record, archive) in children, which end with the process or with the
 * service: a process that hangs, dies or lies delays no other. One thread looks for new processes and for
 * commands that have ended. */
#pragma once

#include <stdbool.h>

struct pb_err;
struct pb_service;
struct pb_autorecord;

struct pb_autorecord_plan {
    const char *rate;      /* of samples, in Hz; NULL: nothing is recorded */
    const char *watchdog;  /* with rate: after how long without a change all stacks are kept; NULL: never */
    const char *retention; /* with archive: days; NULL: what the process's settings say */
    bool archive;
};

/* 0 with NULL where there is nothing to watch. */
int pb_autorecord_new(const struct pb_service *s, const struct pb_autorecord_plan *plan,
                      struct pb_autorecord **ret, struct pb_err *err);
/* Ends its commands, which write what they have, and waits for them. NULL is allowed. */
void pb_autorecord_free(struct pb_autorecord *w);
