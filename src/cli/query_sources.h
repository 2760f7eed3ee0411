/* query_sources: from the targets of a command to what the engine reads. */
#pragma once

#include "cli/cli.h"
#include "engine/caller/broker.h"

struct pb_query_sources {
    struct pb_sql_source *at;
    unsigned n;
    bool no_agent; /* none of them is probed */
    char *archive; /* the folder of their archived rows; NULL: there are none */
    int hold;      /* keeps them from being removed; with archive only */
};

/* Opens what each target has recorded, live or left behind; a process that is not probed has nothing, which
 * is no error. Injects nothing. Without targets there is one source that names no process,
 * or, with --archive, one for each run in the archive. What is archived of a run belongs to its source. */
int pb_query_sources_open(const struct pb_call *call, struct pb_query_sources *ret, struct pb_err *err);
void pb_query_sources_done(struct pb_query_sources *s);
