/* cluster_look: the question which ranks the nodes of a cluster have. */
#pragma once

#include "cluster/link/ask_nodes.h"

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
