/* parts: where this program's other parts are, relative to itself: an installation can be moved, a build tree
 * used as it is. */
#pragma once

#include "inject/session.h"

/* The folder of the agents. -ENOENT with a sentence when they are not where they belong. Static memory. */
int pb_parts_agents(const char **ret, struct pb_err *err);

/* The folder of the Python part when this is a development tree that only we or root can write to, NULL
 * otherwise. */
const char *pb_parts_python(void);

/* Opens a session with the agent of pid, with this program's parts. */
int pb_parts_session(pid_t pid, bool no_inject, unsigned timeout_ms, struct pb_session *ret,
                     struct pb_err *err);
