/* parts: finds this program's other parts relative to itself, so that an installation can be moved and a
 * build tree used directly. */
#pragma once

#include "base/err.h"
#include "inject/session.h"

struct pb_ask;

/* Opens a session with the agent of pid, with this program's parts, in a child (task.h): injection traces,
 * blocks signals and changes priorities, and reading the files of a process that hangs may block. The child
 * has timeout_ms (0: 10 s) for what pb_session_open does in that time, and some seconds for the rest. A
 * library load that has begun in the target is waited for, and the caller gets a note. */
int pb_parts_session(const struct pb_ask *ask, pid_t pid, bool no_inject, unsigned timeout_ms,
                     struct pb_session *ret, struct pb_err *err);

/* The same for several targets at once, each in a child: one that hangs does not delay the others. */
struct pb_parts_session {
    int result; /* of pb_parts_session; the session is open where it is >= 0. -ESRCH: the target is dead */
    struct pb_err err;
    struct pb_session session;
};

/* *ret: one per target, in their order, to be freed by pb_parts_sessions_done. -ENOMEM: none. */
struct pb_targets;
int pb_parts_sessions(const struct pb_ask *ask, const struct pb_targets *targets, bool no_inject,
                      unsigned timeout_ms, struct pb_parts_session **ret, struct pb_err *err);
/* Closes the open ones and frees all; NULL is allowed. */
void pb_parts_sessions_done(struct pb_parts_session *sessions, size_t n);

/* The folder whose sitecustomize.py starts the agent; launch puts it first in PYTHONPATH. */
#define PB_PARTS_PATH 640
int pb_parts_launch(char *ret, size_t size, struct pb_err *err);
