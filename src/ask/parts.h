/* parts: where this program's other parts are, relative to itself: an installation can be moved, a build tree
 * used as it is. */
#pragma once

#include "inject/session.h"

/* Opens a session with the agent of pid, with this program's parts. */
int pb_parts_session(pid_t pid, bool no_inject, unsigned timeout_ms, struct pb_session *ret,
                     struct pb_err *err);

/* The folder whose sitecustomize.py starts the agent: what launch puts in front of PYTHONPATH. */
#define PB_PARTS_PATH 640
int pb_parts_launch(char *ret, size_t size, struct pb_err *err);
