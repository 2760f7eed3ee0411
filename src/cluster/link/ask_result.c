/* ask_result: what came of each node; see ask_nodes.h. */
#include "cluster/link/ask_nodes.h"

#include <stdlib.h>

static const char *const state_names[PB_NODE_STATES] = {
    [PB_NODE_NOT_ASKED] = "not asked", [PB_NODE_ANSWERED] = "answered",
    [PB_NODE_LATE] = "late",           [PB_NODE_UNREACHABLE] = "unreachable",
    [PB_NODE_REFUSED] = "refused",     [PB_NODE_OTHER_VERSION] = "other version",
};

const char *pb_node_state_name(enum pb_node_state state)
{
    return state < PB_NODE_STATES ? state_names[state] : "?";
}

void pb_cluster_result_done(struct pb_cluster_result *r)
{
    free(r->nodes);
    *r = (struct pb_cluster_result){0};
}
