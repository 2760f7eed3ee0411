/* ranks: commands over all ranks of a cluster (`-t cluster[:NAME]`): their options, and what is printed. What
 * is asked of the nodes, and how the answers are merged, is in cluster/questions/. */
#pragma once

#include "cli/cli.h"
#include "cluster/link/ask_nodes.h"

#include <stdio.h>

/* Whether a target names a cluster: "cluster" or "cluster:NAME"; *ret_name: NULL where it names none. */
bool pb_cluster_is_target(const char *target, const char **ret_name);

/* A command for the ranks that call selects, as main.c runs one for processes. */
int pb_cluster_run(const struct pb_call *call, struct pb_err *err);
/* A command in each rank, and what they print. more_ms: how long it takes beside --timeout; roles: named for
 * ranks that print the same. */
int pb_cluster_each(const struct pb_call *call, const struct pb_cluster *c, const struct pb_selection *s,
                    unsigned more_ms, bool roles, struct pb_err *err);
/* --background over a cluster: PB_USAGE where the launcher ends what it started; instead: what to use. */
int pb_cluster_check_background(const struct pb_cluster *c, const char *instead, struct pb_err *err);

/* --- ranks_archive.c --- */
/* SQL over the archives below a folder; program: this one. */
int pb_cluster_history(const struct pb_call *call, const char *program, struct pb_err *err);

/* --- ranks_report.c: messages about nodes and ranks --- */
/* On stderr, where not all answered: how many did, and which did not and why. True: all did. */
bool pb_cluster_tell(const struct pb_cluster *c, const struct pb_cluster_result *r);
/* On stderr: which of the saved ranks that were asked for are on no node any more; has: whether one answered.
 * True: some are missing. */
bool pb_cluster_tell_missing(const struct pb_cluster *c, const struct pb_selection *s,
                             const struct pb_cluster_result *r, bool (*has)(const void *arg, int32_t rank),
                             const void *arg);
/* "0-3, 9" of a set of numbers: writes to out. */
void pb_cluster_put_ranks(FILE *out, const bool *in, size_t n);

/* --- ranks_profile.c: flamegraph and top --- */
int pb_cluster_flamegraph(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                          struct pb_err *err);
int pb_cluster_top(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                   struct pb_err *err);

/* --- ranks_diagnose.c --- */
int pb_cluster_diagnose(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                        struct pb_err *err);

/* --- ranks_stacks.c --- */
int pb_cluster_backtrace(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                         struct pb_err *err);

/* --- ranks_debug.c --- */
/* break, watch and trace: set for all ranks or for none, with the timeouts of the job's groups raised before
 * a rank can be held; --stop puts them back. Without anything to set they list what is. */
int pb_cluster_debug(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                     struct pb_err *err);

/* --- ranks_show.c --- */
int pb_cluster_show(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err);
