/* parts: where this program's other parts are, relative to itself: an installation can be moved, a build tree
 * used as it is. */
#pragma once

#include "inject/session.h"

/* Opens a session with the agent of pid, with this program's parts. */
int pb_parts_session(pid_t pid, bool no_inject, unsigned timeout_ms, struct pb_session *ret,
                     struct pb_err *err);
