/* select: which ranks and nodes of a cluster a question is for.
 *
 *   --ranks 0-7,64        numbers and ranges
 *   --ranks pp=3,tp=*     by role: every part must hold; "*": any value of a rank that has that role
 *   --nodes n[01-16],m3   names; ranges in brackets as launchers write them */
#pragma once

#include "cluster/cluster.h"

struct pb_selection {
    const char *ranks, *nodes; /* as given; NULL: all */
    bool *node;                /* of each node: it is asked */
    char *wanted;              /* the ranks as numbers and ranges, "0-3,9"; NULL: all */
    size_t nnodes, asked;
    size_t nranks; /* known ranks that are selected */
};

/* -EINVAL: a text that is none of these, or that fits nothing. */
int pb_select(const struct pb_cluster *c, const char *ranks, const char *nodes, struct pb_selection *ret,
              struct pb_err *err);
void pb_selection_done(struct pb_selection *s);

/* Numbers and ranges, for one number at a time. */
bool pb_ranges_have(const char *ranges, uint32_t number);
/* -EINVAL: it is no list of numbers and ranges. */
int pb_ranges_check(const char *ranges);

/* The names that a list with brackets stands for, each to each(): "n[01-03],m" is n01, n02, n03, m. A
 * negative result of each ends it. -EINVAL; -E2BIG: more than PB_CLUSTER_NODES. */
int pb_hostlist_each(const char *list, int (*each)(void *arg, const char *name), void *arg);
