/* pprof: sampling in the background that the service shows at /flamegraph, for `pprof` and `inject -P`. */
#pragma once

#include "cli/cli.h"

struct pb_own_service;

enum { PB_PPROF_LIMIT_MS = 3600000 };

/* Samples the call's one process until it ends, limit_ms have passed (0: no limit) or `pprof --stop`, unless
 * it is sampled already; and prints the command line by which curl gets the flame graph of that service. */
int pb_pprof_start(const struct pb_call *call, const struct pb_own_service *service, unsigned limit_ms,
                   struct pb_err *err);
