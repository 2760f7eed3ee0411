/* members: the processes of this node that are ranks of a job, by the environment that their launcher set. */
#pragma once

#include "cluster/cluster.h"

struct pb_ask;

struct pb_node_members {
    struct pb_cluster_rank *at; /* by rank; node is 0 */
    size_t n;
    uint32_t world; /* the largest that any of them was told; 0: none was */
    char jobs[512]; /* they are of several jobs, of which these are the first: "A=1 (ranks 0, 1), A=2 (..)" */
};

/* match: VARIABLE=VALUE that stands in their environment; NULL or "": any. ranks: "0-7,64"; NULL: all. Of the
 * processes that have a rank's environment the one counts that the launcher started: not what it started
 * itself, and not a launcher which has another launcher's rank. */
int pb_members_read(const struct pb_ask *ask, const char *match, const char *ranks,
                    struct pb_node_members *ret, struct pb_err *err);
void pb_members_done(struct pb_node_members *m);
/* Sets has_torch of those that have loaded it. */
void pb_members_find_torch(const struct pb_ask *ask, struct pb_node_members *m);

/* What an environment says of a rank. False: it has none, or another job's. ret_launcher: static. */
bool pb_member_read(const char *environment, size_t length, const char *match, struct pb_cluster_rank *ret,
                    uint32_t *ret_world, const char **ret_launcher);
