/* look: two looks at the processes of jobs, a second apart, as facts. */
#pragma once

#include "diagnose/job_ranks.h"

struct pb_look_options {
    unsigned between_ms; /* 0: a second */
    unsigned limit_ms;   /* for a process, in each look; 0: some hundred ms */
};

/* Fills in threads of all processes of all jobs. A process that does not answer has its result and why. */
int pb_diag_look(const struct pb_ask *ask, struct pb_diag_jobs *jobs, const struct pb_look_options *options,
                 struct pb_err *err);
