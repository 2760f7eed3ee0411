/* keeper: the process outside that keeps the scene of a fatal signal (agent/crash.h), or of a hang
 * (agent/hang.h). */
#pragma once

#include <stdbool.h>

struct pb_call;
struct pb_err;

struct pb_keeper_begun {
    bool has_python;    /* the process */
    char left_out[384]; /* which signals are not caught, and why: lines; "": all are */
};

/* Starts one for the target of the call, whose agent must be there; returns once the handlers are set. It
 * ends by itself with the process, its agent, or `catch --stop`. */
int pb_keeper_start(const struct pb_call *call, struct pb_keeper_begun *ret, struct pb_err *err);

/* One for the hangs of each target of the call, in which the torch probe was started. No handler is set, and
 * nothing of the program waits. It ends with the process, its agent, or that probe. To be called with no
 * session open: the keepers would hold its descriptors. */
void pb_keepers_of_hangs_start(const struct pb_call *call);

/* Takes the handlers back and ends the keeper. 1: there was none. */
int pb_keeper_stop(const struct pb_call *call, bool *ret_has_python, struct pb_err *err);
