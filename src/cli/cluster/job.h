/* job: the asking end: a cluster found, looked at, kept (`probing cluster ..`), and commands for all of its
 * ranks (`-t cluster[:NAME]`). */
#pragma once

#include "cli/cli.h"
#include "cluster/ask.h"

#include <stdio.h>

/* Whether a target names a cluster: "cluster" or "cluster:NAME"; *ret_name: NULL where it names none. */
bool pb_cluster_is_target(const char *target, const char **ret_name);

/* A command for the ranks that call selects, as main.c runs one for processes. */
int pb_cluster_run(const struct pb_call *call, struct pb_err *err);

/* --- find.c: the nodes of a job --- */
/* Fills name (where it is ""), way, job, match, nodes from the options of `cluster attach`, or else from the
 * environment of this process and what runs here. */
int pb_cluster_find(const struct pb_call *call, struct pb_cluster *c, struct pb_err *err);
/* The nodes that the cluster's launcher knows now, in place of those that are kept; the same where it knows
 * none (ssh, services). */
int pb_cluster_find_again(struct pb_cluster *c, struct pb_err *err);

/* --- history.c --- */
/* SQL over the archives below a folder; program: this one. */
int pb_cluster_history(const struct pb_call *call, const char *program, struct pb_err *err);

/* --- look.c --- */
/* What is said of single ranks: at most cap of them. */
struct pb_cluster_look_notes {
    struct {
        int32_t rank;
        char text[400];
    } * at;
    size_t n, cap;
};
/* Asks all nodes which ranks they have, and takes what they say into the cluster. *ret: what each did. */
int pb_cluster_look(struct pb_cluster *c, unsigned deadline_ms, struct pb_cluster_result *ret,
                    struct pb_cluster_look_notes *notes, struct pb_err *err);

/* --- services.c: services that `attach --serve` starts on the nodes --- */
/* A new mark for them. */
int pb_cluster_mark_services(struct pb_cluster *c, struct pb_err *err);
/* Starts them on the nodes that answered, where the user has none, and has the cluster ask through those that
 * can be reached. Says on stderr which nodes have none, and why. */
int pb_cluster_serve(struct pb_cluster *c, const struct pb_cluster_result *looked, unsigned limit_ms,
                     struct pb_err *err);
/* Ends those that were started for the cluster. False: nodes did not answer, which are named on stderr. */
bool pb_cluster_end_services(struct pb_cluster *c, unsigned limit_ms);

/* --- report.c: what is said of nodes and ranks --- */
/* On stderr, where not all answered: how many did, and which did not and why. True: all did. */
bool pb_cluster_tell(const struct pb_cluster *c, const struct pb_cluster_result *r);
/* On stderr: n ranks, those that are set, are not on their nodes any more. */
void pb_cluster_tell_gone(const bool *gone, size_t size, size_t n);
/* "0-3, 9" of a set of numbers: writes to out. */
void pb_cluster_put_ranks(FILE *out, const bool *in, size_t n);
/* What the ranks of a set have in common that not all ranks have: "pp=3, all tp"; "": nothing. */
void pb_cluster_common_role(const struct pb_cluster *c, const bool *in, size_t n, char *ret, size_t size);

/* --- profile.c: flamegraph and top --- */
int pb_cluster_flamegraph(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                          struct pb_err *err);
int pb_cluster_top(const struct pb_call *call, const struct pb_cluster *c, const struct pb_selection *s,
                   struct pb_err *err);

/* --- keep_clocks.c --- */
/* From now on the clocks of the nodes are measured again, in the end every ten seconds, by a child, and kept
 * in the cluster's file; for commands that take long. 0: there is none. */
pid_t pb_clocks_follow(const struct pb_cluster *c);
void pb_clocks_end(pid_t child);

/* --- stacks.c --- */
int pb_cluster_backtrace(const struct pb_call *call, const struct pb_cluster *c, const struct pb_selection *s,
                         struct pb_err *err);
