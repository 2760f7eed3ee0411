/* recorded: rules over what the ranks of a job have recorded: those whose header has "-- needs: TABLES". They
 * see the tables of all probed ranks at once, beside the facts of the looks. */
#pragma once

#include "diagnose/diagnose.h"

/* probed: all probed processes of this machine. Adds findings to the answer's, and fills in how many ranks
 * have recorded tables. 0 also where none has. */
int pb_diag_recorded(const struct pb_ask *ask, const struct pb_diag_rules *rules,
                     const struct pb_targets *probed, struct pb_diag_answer *a, unsigned timeout_ms,
                     struct pb_err *err);

/* The ranks of the job that the targets belong to, living and ended, that have recorded tables. There may be
 * none. -EINVAL: these are several jobs. */
int pb_diag_recorded_of(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_targets *ret,
                        struct pb_err *err);
