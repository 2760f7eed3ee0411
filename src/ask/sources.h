/* sources: opens the tables of a question's targets for the engine. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "engine/caller/broker.h"

struct pb_query_sources {
    struct pb_sql_source *at;
    unsigned n;
    unsigned failed; /* how many of them have unreadable recorded tables (live.broken) */
    bool no_agent;   /* none of them is probed */
    char *archive;   /* folder of their archived rows; NULL: none */
    int hold;        /* lock on the archived files; only with archive */
};

/* Opens the recorded tables of each target, live or ended; a process that is not probed has none, which is no
 * error. Injects nothing. Without targets there is one source that names no process. The archived rows of a
 * run belong to its source. One of several targets that cannot be read stays a source without recorded rows:
 * its live.broken says why. ask must outlive the sources. */
int pb_sources_open(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_query_sources *ret,
                    struct pb_err *err);
/* One source per run in the archive. */
int pb_sources_open_archive(const struct pb_ask *ask, struct pb_query_sources *ret, struct pb_err *err);
void pb_query_sources_done(struct pb_query_sources *s);
