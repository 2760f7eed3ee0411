/* own_code: which line of the program's own code takes the time of a training that is in none of torch's
 * phases, by some looks at the stack of the thread that steps. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"

struct pb_own_code {
    char function[160], file[256];
    int line;
    unsigned looks;   /* at the thread */
    unsigned outside; /* of these, outside phases */
    unsigned hits;    /* of these, at the line */
};

/* Takes a second. -ENODATA: the process makes no steps, or nearly all their time is in phases. */
int pb_own_code_ask(const struct pb_ask *ask, const struct pb_target *target, struct pb_own_code *ret,
                    struct pb_err *err);
