/* fanout: one command for several processes at once, with the process's label in front of each line. */
#pragma once

#include "cli/cli.h"

/* Runs command->run for each target in a child process of its own, so that one that hangs holds up no other,
 * and one that fails takes none with it. Returns 0, or PB_FAILED when any failed.
 *
 * These children have no deadline, unlike those of ask/apart.h, which answer a question: they are the whole
 * command, prints and all, and eval, archive and a prompt may go on for as long as the user lets them. What
 * in them waits for the target has one: the session is opened in a child of apart.h, the conversation has the
 * command's --timeout. */
int pb_fanout(const struct pb_call *call, struct pb_err *err);

/* Runs it for one target and prints the error, if any, as every command does. Returns the exit status. */
int pb_run_one(const struct pb_call *call);

/* One of several targets failed: says so on stderr, with its label, so that the others' rows are shown all
 * the same, and returns PB_FAILED. The only target's failure is the command's: r and err are left to be
 * reported. */
int pb_target_failed(const struct pb_call *call, const struct pb_target *target, int r, struct pb_err *err);
