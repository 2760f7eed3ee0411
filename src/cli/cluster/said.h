/* said: a command run for each rank of a cluster, and what each of them printed (target.c). */
#pragma once

#include "cli/cluster/job.h"

struct pb_said {
    struct pb_cluster_rank rank;
    int status;
    char *output, *errors; /* a NUL stands behind each; NULL: nothing */
    size_t noutput, nerrors;
    bool shown;
};

struct pb_said_all {
    const struct pb_cluster *c;
    const struct pb_selection *s;
    struct pb_said *at; /* by rank */
    size_t n, cap;
    struct pb_cluster_result result;
};
void pb_said_done(struct pb_said_all *a);

/* Asks the ranks of the selection. words: of a command line, from the command's name on. */
int pb_said_ask(const struct pb_cluster *c, const struct pb_selection *s, const char *const *words,
                size_t nwords, unsigned limit_ms, struct pb_said_all *ret, struct pb_err *err);

/* A command line made of what was parsed: the command's name, `first` (options before its own, ended by
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

/* Ranks that said the same once: "[ranks 0-3] .."; with roles "[ranks 0-3 (dp=0)] ..". */
void pb_said_put(struct pb_said_all *a, bool roles);
/* "ranks 0-3", with roles "ranks 0-3 (dp=0)". */
void pb_said_put_ranks(FILE *out, const struct pb_cluster *c, const bool *in, size_t n, bool roles);
/* On stderr which nodes and ranks did not answer. True: all did. */
bool pb_said_tell(const struct pb_said_all *a);
/* --timeout of the call, and no more than an hour. */
unsigned pb_said_limit(const struct pb_call *call);
