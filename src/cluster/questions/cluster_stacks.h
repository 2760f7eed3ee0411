/* cluster_stacks: the question for the stacks of all ranks of a cluster. A node merges those of its ranks,
 * and here the nodes' answers are merged as they come. */
#pragma once

#include "ask/stackset.h"
#include "cluster/link/ask_nodes.h"

struct pb_cluster_stacks_request {
    const struct pb_selection *selection;
    unsigned rounds, interval_ms; /* how often each node looks, and how long it waits between two looks */
    unsigned limit_ms;            /* of one look */
    bool native, no_lines;
    struct pb_links *links; /* as in struct pb_cluster_question */
};

struct pb_rank_stacks {
    bool answered, failed, still; /* still: its stacks were equal in all rounds */
    uint32_t node;
    char *text; /* what it waits for, or why it could not be read; NULL, "": nothing */
};

struct pb_cluster_stacks {
    const struct pb_cluster *c;
    unsigned rounds;
    struct pb_stackset *set;      /* of the last round */
    struct pb_rank_stacks *ranks; /* by rank */
    size_t n;
    struct pb_cluster_result result;
};

/* 0 also where not all nodes answered: ret->result says which. */
int pb_cluster_stacks(const struct pb_cluster *c, const struct pb_cluster_stacks_request *request,
                      struct pb_cluster_stacks *ret, struct pb_err *err);
void pb_cluster_stacks_done(struct pb_cluster_stacks *m);
