/* rank_rows: what a node answers to the statements of a plan over many nodes (engine/worker/plan.h): the rows
 * of each, as frames (engine/shared/sent.h). */
#pragma once

#include "ask/query.h"

#include <stdio.h>

struct pb_rows_request {
    /* Pairs: a statement, and what is run instead where it fails; "-": nothing. */
    const char *const *statements;
    size_t n;
    unsigned timeout_ms; /* for all of them; 0: none */
    struct pb_cancel cancel;
};

/* Writes the whole answer; a statement that fails is part of it. rank and target_pid lead the rows, also of a
 * single process. -EINVAL: that are no pairs; -EIO: out takes nothing; -ECANCELED; -ENOMEM. */
int pb_rows_answer(const struct pb_ask *ask, const struct pb_targets *targets,
                   const struct pb_rows_request *request, FILE *out, struct pb_err *err);
