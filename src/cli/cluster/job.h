/* job: the asking end: finding, inspecting and saving a cluster (`probing cluster ..`), and commands over all
 * of its ranks (`-t cluster[:NAME]`). */
#pragma once

#include "cli/cli.h"
#include "cluster/link/ask.h"

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

/* --- find.c: the nodes of a job --- */
/* Fills name (where it is ""), way, job, match, nodes from the options of `cluster attach`, or else from the
 * environment of this process and what runs here. */
int pb_cluster_find(const struct pb_call *call, struct pb_cluster *c, struct pb_err *err);
/* Replaces the saved nodes by those that the launcher lists now. Without such a list (ssh, services) they
 * stay. */
int pb_cluster_find_again(struct pb_cluster *c, struct pb_err *err);

/* --- history.c --- */
/* SQL over the archives below a folder; program: this one. */
int pb_cluster_history(const struct pb_call *call, const char *program, struct pb_err *err);

/* --- look.c --- */
/* Messages about single ranks, cap of them at most. */
struct pb_cluster_look_notes {
    struct {
        int32_t rank;
        char text[400];
    } * at;
    size_t n, cap;
};
/* Asks all nodes for their ranks and updates the cluster. *ret: the outcome of each node. */
int pb_cluster_look(struct pb_cluster *c, unsigned deadline_ms, struct pb_cluster_result *ret,
                    struct pb_cluster_look_notes *notes, struct pb_err *err);

/* --- services.c: services that `attach --serve` starts on the nodes --- */
/* A new mark for them. */
int pb_cluster_mark_services(struct pb_cluster *c, struct pb_err *err);
/* Starts a service on each node that answered and where the user has none, and uses the services that can be
 * reached from here. Prints to stderr which nodes have none, and why. */
int pb_cluster_serve(struct pb_cluster *c, const struct pb_cluster_result *looked, unsigned limit_ms,
                     struct pb_err *err);
/* Stops the services that were started for the cluster. False: some nodes did not answer; stderr names
 * them. */
bool pb_cluster_end_services(struct pb_cluster *c, unsigned limit_ms);

/* --- report.c: messages about nodes and ranks --- */
/* On stderr, where not all answered: how many did, and which did not and why. True: all did. */
bool pb_cluster_tell(const struct pb_cluster *c, const struct pb_cluster_result *r);
/* Prints to stderr how many ranks, the set ones, have left their nodes. */
void pb_cluster_tell_gone(const bool *gone, size_t size, size_t n);
/* "0-3, 9" of a set of numbers: writes to out. */
void pb_cluster_put_ranks(FILE *out, const bool *in, size_t n);
/* What the ranks of a set have in common that not all ranks have: "pp=3, all tp"; "": nothing. */
void pb_cluster_common_role(const struct pb_cluster *c, const bool *in, size_t n, char *ret, size_t size);

/* --- profile.c: flamegraph and top --- */
int pb_cluster_flamegraph(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                          struct pb_err *err);
int pb_cluster_top(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                   struct pb_err *err);

/* --- keep_clocks.c --- */
/* Starts a child that measures the nodes' clocks again and again, in the end every ten seconds, and stores
 * the results in the cluster's file: for commands that run long. 0: no child was started. */
pid_t pb_clocks_follow(const struct pb_cluster *c);
void pb_clocks_end(pid_t child);

/* --- stacks.c --- */
int pb_cluster_backtrace(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                         struct pb_err *err);

/* --- debug.c --- */
/* break, watch and trace: set for all ranks or for none, with the timeouts of the job's groups raised before
 * a rank can be held; --stop puts them back. Without anything to set they list what is. */
int pb_cluster_debug(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                     struct pb_err *err);

/* --- show.c --- */
int pb_cluster_show(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err);
