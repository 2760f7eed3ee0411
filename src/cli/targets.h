/* targets: from what a person typed to processes. */
#pragma once

#include "cli/cli.h"

/* A pid, or a pattern: text that stands in the command line. Without all exactly one process must fit;
 * otherwise the candidates are named. With all: every match, or the workers below a launcher given by its
 * pid. dead: a pid whose process is gone counts when its run is left. */
int pb_targets_resolve(const char *text, bool all, bool dead, struct pb_targets *ret, struct pb_err *err);
void pb_targets_done(struct pb_targets *targets);

/* One of several targets failed: says so on stderr, with its label, so that the others' rows are shown all
 * the same, and returns PB_FAILED. The only target's failure is the command's: r and err are left to be
 * reported. */
int pb_target_failed(const struct pb_call *call, const struct pb_target *target, int r, struct pb_err *err);

/* "rank 3" or "pid 4711". */
void pb_target_label(pid_t pid, char *ret, size_t size);
