/* archive_nodes: archives of many ranks as a cluster: `cluster query --archive DIR`.
 *
 * DIR is an archive that all ranks wrote, or a folder with one archive for each node. Each node of each
 * archive becomes a node of a temporary cluster, answered by a child of this program. So planning,
 * aggregation and error reports are those of a live cluster. */
#pragma once

#include "cluster/members.h"

/* The asking end: adds the nodes and ranks of the archives below a folder. */
int pb_history_find(struct pb_cluster *c, const char *given, struct pb_err *err);
/* The answering end: the ranks whose runs the archive in a folder has of a node. */
int pb_history_members(const char *folder, const char *node, struct pb_node_members *ret, struct pb_err *err);
