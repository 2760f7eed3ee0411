/* sources: from the targets of a question to what the engine reads. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "engine/caller/broker.h"

struct pb_query_sources {
    struct pb_sql_source *at;
    unsigned n;
    unsigned failed; /* of them: what they recorded cannot be read (live.broken) */
    bool no_agent;   /* none of them is probed */
    char *archive;   /* the folder of their archived rows; NULL: there are none */
    int hold;        /* keeps them from being removed; with archive only */
};

/* ask must outlive what is opened. Opens what each target has recorded, live or left behind; a process that
 * is not probed has nothing, which is no error. Injects nothing. Without targets there is one source that
 * names no process. What is archived of a run belongs to its source. One of several targets that cannot be
 * read stays a source, without recorded rows: its live.broken says why. */
int pb_sources_open(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_query_sources *ret,
                    struct pb_err *err);
/* One source for each run in the archive. */
int pb_sources_open_archive(const struct pb_ask *ask, struct pb_query_sources *ret, struct pb_err *err);
void pb_query_sources_done(struct pb_query_sources *s);
