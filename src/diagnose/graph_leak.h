/* graph_leak: whether a process keeps more and more results that need a gradient. Each of them keeps the
 * graph that it was computed by, with the memory of all its steps, which Python knows nothing of. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/err.h"

struct pb_graph_leak {
    char shape[48]; /* of the results */
    long before, after;
    double seconds; /* between the two counts */
    char file[256], function[96];
    int line; /* where most of what came lately was made; 0: nothing was sampled */
};

/* Whether the counts of a shape at one look after the other may be those of results that are kept. */
static inline bool pb_graph_leak_grows(const long *counts, int looks)
{
    bool grows = counts[0] >= 50;

    for (int look = 1; look < looks; look++)
        grows &= counts[look] > counts[look - 1];
    return grows;
}

/* Takes some seconds where there are results enough to be kept ones. -ENODATA: it keeps none, or no more of
 * them. Asks the interpreter, which the agent must be in. */
int pb_diag_graph_leak(const struct pb_ask *ask, const struct pb_target *target, struct pb_graph_leak *ret,
                       struct pb_err *err);
