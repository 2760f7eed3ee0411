/* recordings: what `record` has written and writes, found by its run folders (remote/runs.h). */
#pragma once

#include "cli/cli.h"

/* A row a recording, of the call's targets, or of all processes where it names none. */
int pb_recordings_list(const struct pb_call *call, struct pb_err *err);

/* Ends the recorders of the call's targets, and waits until each has written what it has. -ESRCH: none
 * records. */
int pb_recordings_stop(const struct pb_call *call, struct pb_err *err);
