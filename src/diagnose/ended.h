/* ended: ranks that have ended, from what they left: their runs, what they printed last, the kernel's log. */
#pragma once

#include "diagnose/job_ranks.h"

/* Adds them to the jobs that they belong to. Where no process of a job is left, the job is added: with
 * targets if one of them is named, without if it ended some minutes ago. */
int pb_diag_ended_add(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_diag_jobs *jobs,
                      struct pb_err *err);

/* After a look: the ranks that left nothing, and the living ones whose interpreter ends. -ENOMEM. */
int pb_diag_ended_complete(const struct pb_ask *ask, struct pb_diag_job *job);
