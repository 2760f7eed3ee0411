/* parts: where this program's other parts are, relative to itself: an installation can be moved, a build tree
 * used as it is. */
#pragma once

#include "base/err.h"
#include "inject/session.h"

struct pb_ask;

/* Opens a session with the agent of pid, with this program's parts, in a child (apart.h): injection traces,
 * blocks signals and changes priorities, and a process that hangs may hold up whoever reads its files. The
 * child has timeout_ms (0: 10 s) for what pb_session_open does in that time, and some seconds for the rest. A
 * load that has begun in the target by then is waited for, and the caller gets a note of it. */
int pb_parts_session(const struct pb_ask *ask, pid_t pid, bool no_inject, unsigned timeout_ms,
                     struct pb_session *ret, struct pb_err *err);

/* The same for several at once, each in a child of its own: one that hangs holds up no other. */
struct pb_parts_session {
    int result; /* of pb_parts_session; the session is open where it is >= 0. -ESRCH for a dead target */
    struct pb_err err;
    struct pb_session session;
};

/* *ret: one for each target, in their order, for pb_parts_sessions_done. -ENOMEM: none. */
struct pb_targets;
int pb_parts_sessions(const struct pb_ask *ask, const struct pb_targets *targets, bool no_inject,
                      unsigned timeout_ms, struct pb_parts_session **ret, struct pb_err *err);
/* Closes those that are open, and frees them; NULL will do. */
void pb_parts_sessions_done(struct pb_parts_session *sessions, size_t n);

/* The folder whose sitecustomize.py starts the agent: what launch puts in front of PYTHONPATH. */
#define PB_PARTS_PATH 640
int pb_parts_launch(char *ret, size_t size, struct pb_err *err);
