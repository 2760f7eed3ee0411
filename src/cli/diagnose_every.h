/* diagnose_every: diagnose again and again: what is new and what is over is printed, kept with its evidence,
 * put into python.alerts, and posted. */
#pragma once

#include "cli/cli.h"

struct pb_diag_request;

/* Until it is ended, or nobody reads any more. */
int pb_diagnose_every(const struct pb_call *call, const struct pb_diag_request *request, unsigned every_ms,
                      struct pb_err *err);
