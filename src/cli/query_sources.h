/* query_sources: from the targets of a command to what the engine reads. */
#pragma once

#include "cli/cli.h"
#include "engine/broker.h"

struct pb_query_sources {
    struct pb_sql_source *at;
    unsigned n;
    bool no_agent; /* none of them is probed */
};

/* Opens what each target has recorded, live or left behind; a process that is not probed has nothing, which
 * is no error. Injects nothing. Without targets there is one source that names no process. */
int pb_query_sources_open(const struct pb_call *call, struct pb_query_sources *ret, struct pb_err *err);
void pb_query_sources_done(struct pb_query_sources *s);
