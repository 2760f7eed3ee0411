/* diagnose: what is wrong with a job, whose fault it is, and at which line.
 *
 * Facts (look.h, graph.c) -> findings (rule.h) -> verdict (explain.c). Prints nothing. */
#pragma once

#include "diagnose/finding.h"
#include "diagnose/job_ranks.h"
#include "diagnose/rule.h"

#include <stdio.h>

struct pb_ask;
struct pb_err;
struct pb_targets;

struct pb_diag_request {
    const struct pb_targets *targets; /* n 0: every job of this machine */
    const char *rules;                /* folder of the user's rules; NULL: none */
    bool recorded;                    /* what processes recorded counts too */
    double since;                     /* of that, what is at most so many seconds old; 0: all */
    unsigned limit_ms;                /* for judging, all jobs together; 0: some seconds for each */
    bool patient; /* where a chain ends at something that only lasts, look again until it has lasted */
};

/* A job and what was found. */
struct pb_diag_answer {
    struct pb_diag_job *job; /* in jobs */
    struct pb_diag_findings findings;
    const struct pb_diag_finding *verdict; /* NULL: nothing was found */
    int answered, asked;                   /* processes of ranks */
    int steps;                             /* that are recorded; 0: none */
    int probed;                            /* its ranks with recorded tables */
};

struct pb_diagnosis {
    struct pb_diag_jobs jobs;
    struct pb_diag_answer *at; /* one a job, those with a verdict first */
    size_t n;
    double seconds;
};

int pb_diagnose(const struct pb_ask *ask, const struct pb_diag_request *request, struct pb_diagnosis *ret,
                struct pb_err *err);
void pb_diagnosis_done(struct pb_diagnosis *d);

/* For a node of several: looks at the job that the targets belong to, judges what its ranks here have
 * recorded, and writes that (facts_wire.h). */
int pb_diagnose_part(const struct pb_ask *ask, const struct pb_diag_request *request, FILE *out,
                     struct pb_err *err);

/* Judges a job joined of such parts. a->job is given, a->findings has what the nodes found in recorded rows.
 * *ret_left_ms: so long a wait must still last to prove anything; 0: none. */
int pb_diagnose_joined(const struct pb_ask *ask, const char *folder, struct pb_diag_answer *a,
                       unsigned *ret_left_ms, struct pb_err *err);
