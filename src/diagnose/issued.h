/* issued: what torch's Flight Recorder says of a job's collectives: which group stands, at which call, who
 * has issued it and who has not. Read with the second look, so it needs neither an agent nor the GIL. */
#pragma once

#include "ask/collectives.h"
#include "diagnose/finding.h"

/* Finds what stands, and makes of ranks that wait for it threads that wait in a collective, where their
 * stacks do not say so: a call was issued, and something else waits for its end. Before pb_diag_follow.
 * -ENOMEM. */
int pb_diag_issued(struct pb_diag_job *job);

/* "not_joined", "operation", ..: for rules. */
const char *pb_diag_stall_name(enum pb_stall_kind kind);

/* Two findings of one cause, from stacks and from the recorder, become one, and each verdict of ranks that
 * wait gets what the recorder says as evidence. */
void pb_diag_issued_merge(const struct pb_diag_job *job, struct pb_diag_findings *findings);
