/* turn_on: what rules over recorded tables need, turned on in the ranks of jobs for a while, and as it was
 * afterwards. */
#pragma once

#include <stddef.h>

struct pb_ask;
struct pb_diag_turned_on;
struct pb_err;
struct pb_targets;

/* In all ranks of the jobs that the targets are in: the agent, the torch probe, samples of allocations. A
 * rank in which that fails is named in a note. *ret_n: ranks in which all of it is on. */
int pb_diag_turn_on(const struct pb_ask *ask, const struct pb_targets *targets,
                    struct pb_diag_turned_on **ret, size_t *ret_n, struct pb_err *err);

/* What was turned on is turned off, and where no agent was none is. Frees it; NULL is allowed. A rank in
 * which it fails is named in a note with the command that does it. */
void pb_diag_turn_back(const struct pb_ask *ask, struct pb_diag_turned_on *on);
