/* cluster_service: services that `cluster attach --serve` starts on the nodes of a cluster. */
#pragma once

#include "cluster/link/ask_nodes.h"

/* Why a node has no service, or may still have one; "": it does as it should. */
struct pb_node_reason {
    char text[256];
};

/* A new mark for them. */
int pb_cluster_mark_services(struct pb_cluster *c, struct pb_err *err);
/* Starts a service on each node that answered and where the user has none, and uses the services that can be
 * reached from here. *ret: one for each node, on the heap. */
int pb_cluster_serve(struct pb_cluster *c, const struct pb_cluster_result *looked, unsigned limit_ms,
                     struct pb_node_reason **ret, struct pb_err *err);
/* Stops the services that were started for the cluster. *ret: one for each node, on the heap; set where what
 * was started may still run. */
int pb_cluster_end_services(struct pb_cluster *c, unsigned limit_ms, struct pb_node_reason **ret,
                            struct pb_err *err);
