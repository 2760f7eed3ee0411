/* facts_wire: the findings of a node about its ranks, as JSON, and the parts of all nodes joined into one
 * job. */
#pragma once

#include "diagnose/diagnose.h"

#include <stdio.h>

/* Writes the job of an answer, which was followed (pb_diag_follow), and its findings. */
void pb_diag_facts_write(FILE *out, const struct pb_diag_answer *a);

/* Adds the part of a node to a job. findings: those of recorded rows, which each node judges itself. What a
 * node sends is checked: -EBADMSG, with why in err; then nothing was added. -ENOMEM. */
int pb_diag_facts_add(struct pb_diag_job *job, struct pb_diag_findings *findings, const char *node,
                      const char *text, size_t length, struct pb_err *err);

/* A rank of which nothing is known but that it ran on that node. why: it did not answer; NULL: it is not
 * there any more. -ENOMEM. */
int pb_diag_facts_add_lost(struct pb_diag_job *job, int rank, pid_t pid, const char *node, const char *why);
