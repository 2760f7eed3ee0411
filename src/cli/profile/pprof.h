/* pprof: sampling in the background that the service shows at /flamegraph, for `pprof` and `inject -P`. */
#pragma once

#include "cli/cli.h"

enum { PB_PPROF_LIMIT_MS = 3600000 };

/* Samples the call's one process until it ends, limit_ms have passed (0: no limit) or `pprof --stop`, unless
 * it is sampled already; and prints the line for a shell that gets the flame graph. url: of the service, with
 * its token, as it prints it. */
int pb_pprof_start(const struct pb_call *call, const char *url, unsigned limit_ms, struct pb_err *err);
