/* job_ranks: which processes of this machine belong together: the ranks of a job, found by what their
 * launcher put into their environment, with all that they started; a process without rank is a job of one. */
#pragma once

#include "diagnose/facts.h"

struct pb_ask;
struct pb_err;
struct pb_targets;

struct pb_diag_jobs {
    struct pb_diag_job *at;
    size_t n;
};

/* With targets: only the jobs that they are in. Processes are filled in, threads are not. */
int pb_diag_jobs_find(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_diag_jobs *ret,
                      struct pb_err *err);
/* The script of a command line of Python, or its first word: what people call the job. */
void pb_diag_job_name(const char *command, char *ret, size_t size);
void pb_diag_jobs_done(struct pb_diag_jobs *jobs);
