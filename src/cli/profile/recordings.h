/* recordings: what `record` has written and writes, found by its run folders (remote/runs.h). */
#pragma once

#include "cli/cli.h"

/* A row a recording, of the call's targets, or of all processes where it names none. */
int pb_recordings_list(const struct pb_call *call, struct pb_err *err);

/* Stops the recorders of the call's targets, and waits until each has written its samples. shown: only the
 * recorders that `pprof` started. -ESRCH: no recorder runs. */
int pb_recordings_stop(const struct pb_call *call, bool shown, struct pb_err *err);

/* The folder of the last samples that `pprof` took of a process. -ENOENT: nothing. */
int pb_recordings_shown(pid_t pid, char *ret, size_t size, bool *ret_goes_on);

/* Records the call's targets by a process of its own that has left the terminal (cmd_record.c). shown: for
 * `pprof`, limit_ms: its end, 0: that of the processes. *ret_recorder: its pid. */
int pb_recordings_start(const struct pb_call *call, bool shown, unsigned limit_ms, char ret_path[256],
                        pid_t *ret_recorder, struct pb_err *err);
