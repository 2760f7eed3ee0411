/* step_lines: which line of the program's own code takes the time of a training that is in none of torch's
 * phases, by some looks at the stack of the thread that steps. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"

enum pb_own_part {
    PB_OWN_OUTSIDE, /* what is in none of torch's phases */
    PB_OWN_DATA,    /* what the data loader calls, or the line that waits for it */
};

struct pb_own_code {
    char function[160], file[256];
    int line;
    unsigned looks;   /* at the thread */
    unsigned outside; /* of these, in that part of the step */
    unsigned hits;    /* of these, at the line */
    unsigned storage; /* of these, in a call that reads, writes or syncs a file, or in state D elsewhere */
    unsigned locks;   /* of these, in a call that waits for a file lock */
    char source[128]; /* the line as it is written; "": it cannot be read */
};

/* Whether so many of the looks at its line say what that part of the step waits for: not one or two by
 * chance, and not at a line that takes little of it. */
bool pb_own_code_is_mostly(const struct pb_own_code *code, unsigned hits);

/* Takes a second. -ENODATA: the process makes no steps, or they spend nearly no time in that part. */
int pb_own_code_ask(const struct pb_ask *ask, const struct pb_target *target, enum pb_own_part part,
                    struct pb_own_code *ret, struct pb_err *err);
