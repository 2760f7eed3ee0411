/* rank_outputs: the command line that each rank of a cluster runs, and how their outputs are printed. */
#pragma once

#include "cli/ranks/ranks.h"
#include "cluster/questions/cluster_command.h"

/* A command line rebuilt from the parsed call: the command's name, `first` (options before its own, ended by
 * NULL), its options and arguments. */
struct pb_command_line {
    const char *at[PB_WIRE_WORDS];
    size_t n;
    char *texts[PB_OPTS_MAX + 2];
    size_t ntexts;
    bool full;
};
int pb_command_line_make(const struct pb_call *call, const char *const *first, unsigned limit_ms,
                         struct pb_command_line *ret, struct pb_err *err);
void pb_command_line_done(struct pb_command_line *w);

/* Ranks with equal output, shown once: "[ranks 0-3] .."; with roles "[ranks 0-3 (dp=0)] ..". */
void pb_rank_outputs_put(struct pb_rank_outputs *a, bool roles);
/* "ranks 0-3", with roles "ranks 0-3 (dp=0)". */
void pb_ranks_put_with_roles(FILE *out, const struct pb_cluster *c, const bool *in, size_t n, bool roles);
/* On stderr which nodes and ranks did not answer. True: all did. */
bool pb_rank_outputs_report(const struct pb_rank_outputs *a);
/* --timeout of the call, and no more than an hour. */
unsigned pb_ranks_limit(const struct pb_call *call);
