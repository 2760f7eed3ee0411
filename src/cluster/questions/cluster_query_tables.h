/* cluster_query_tables: what the asking side knows of a cluster, as tables of SQL: cluster.nodes,
 * cluster.ranks, cluster.clocks. */
#pragma once

#include "cluster/link/ask_nodes.h"

/* The statement whose rows the table is, on the heap; NULL: out of memory. */
char *pb_cluster_nodes_select(const struct pb_cluster *c, const struct pb_cluster_result *r);
char *pb_cluster_ranks_select(const struct pb_cluster *c);
char *pb_cluster_clocks_select(const struct pb_cluster *c);
