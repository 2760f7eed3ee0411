/* fanout: runs one command for several processes at once, with the process's label before each line. */
#pragma once

#include "cli/cli.h"

/* Runs command->run for each target in a child process, so that a target that hangs or fails does not affect
 * the others. Returns 0, or PB_FAILED when any failed.
 *
 * These children have no deadline (the children of ask/task.h do): they run the whole command, output
 * included, and eval, archive or a prompt may last as long as the user lets them. Waiting for the target is
 * bounded: the session is opened in a child of task.h, the conversation has the command's --timeout. */
int pb_fanout(const struct pb_call *call, struct pb_err *err);

/* Runs it for one target and prints the error, if any, as every command does. Returns the exit status. */
int pb_run_one(const struct pb_call *call);

/* Reports the failure of one of several targets on stderr with its label, and returns PB_FAILED, so that the
 * others' rows are still shown. With a single target r and err are left to the caller. */
int pb_target_failed(const struct pb_call *call, const struct pb_target *target, int r, struct pb_err *err);

/* The file that a command writes about one of n targets: as given, trace.json; of several with the target's
 * label, trace-rank-3.json. */
void pb_target_path(const struct pb_target *target, const char *given, size_t n, char *ret, size_t size);
