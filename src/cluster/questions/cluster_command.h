/* cluster_command: a command of this program in each rank of a cluster, and what each of them printed. */
#pragma once

#include "cluster/link/ask_nodes.h"

struct pb_rank_output {
    struct pb_cluster_rank rank;
    int status;
    char *output, *errors; /* a NUL stands behind each; NULL: nothing */
    size_t noutput, nerrors;
    bool shown; /* for whoever prints them */
};

struct pb_rank_outputs {
    const struct pb_cluster *c;
    const struct pb_selection *s;
    struct pb_rank_output *at; /* by rank */
    size_t n, cap;
    struct pb_cluster_result result;
};
void pb_rank_outputs_done(struct pb_rank_outputs *a);

/* Asks the ranks of the selection. words: of a command line, from the command's name on. */
int pb_rank_outputs_ask(const struct pb_cluster *c, const struct pb_selection *s, const char *const *words,
                        size_t nwords, unsigned limit_ms, struct pb_rank_outputs *ret, struct pb_err *err);
/* In one rank of each node: for a command that answers for all ranks of its node. */
int pb_rank_outputs_ask_once(const struct pb_cluster *c, const struct pb_selection *s,
                             const char *const *words, size_t nwords, unsigned limit_ms,
                             struct pb_rank_outputs *ret, struct pb_err *err);
/* NULL: it has not answered. */
const struct pb_rank_output *pb_rank_outputs_find(const struct pb_rank_outputs *a, int32_t rank);
