/* keeper: a process outside the target that records the stacks of a fatal signal (agent/crash/crash.h) or of
 * a hang (agent/crash/hang.h). */
#pragma once

#include <stdbool.h>

struct pb_call;
struct pb_err;

struct pb_keeper_state {
    bool has_python;    /* whether Python is in the process */
    char left_out[384]; /* which signals are not caught, and why: lines; "": all are */
};

/* Starts a keeper for the target of the call, whose agent must be there; returns once the handlers are set.
 * The keeper ends with the process, its agent, or `catch --stop`. */
int pb_keeper_start(const struct pb_call *call, struct pb_keeper_state *ret, struct pb_err *err);

/* Starts a keeper for the hangs of each target in which the torch probe was started. No handler is set, and
 * the program never waits for it. It ends with the process, its agent, or that probe. Call it with no session
 * open: the keepers would inherit its descriptors. */
void pb_keepers_of_hangs_start(const struct pb_call *call);

/* Removes the handlers and ends the keeper. Returns 1 when there was none. */
int pb_keeper_stop(const struct pb_call *call, bool *ret_has_python, struct pb_err *err);
