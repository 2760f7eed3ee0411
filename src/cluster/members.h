/* members: the processes of this node that are ranks of a job, by the environment that their launcher set. */
#pragma once

#include "cluster/cluster.h"
#include "control/identity.h"

struct pb_ask;

struct pb_node_members {
    struct pb_cluster_rank *at; /* by rank; node is 0 */
    size_t n;
    uint32_t world; /* the largest WORLD_SIZE in their environments; 0: none has one */
    char jobs[512]; /* set if they belong to several jobs; the first of them: "A=1 (ranks 0, 1), A=2 (..)" */
};

/* match: VARIABLE=VALUE in their environment; NULL or "": any. ranks: "0-7,64"; NULL: all. A rank is the
 * process that the launcher started. Its own children, and nested launchers, do not count. */
int pb_members_read(const struct pb_ask *ask, const char *match, const char *ranks,
                    struct pb_node_members *ret, struct pb_err *err);
void pb_members_done(struct pb_node_members *m);
/* Sets has_torch of the members that have loaded torch. */
void pb_members_find_torch(const struct pb_ask *ask, struct pb_node_members *m);

/* What a launcher set for a rank: its number (-1: none, or more than `most`), and its roles. */
int64_t pb_identity_number(const struct pb_identity *id, enum pb_identity_field field, int64_t most);
void pb_identity_roles(const struct pb_identity *id, struct pb_roles *ret);

/* What an environment says of a rank. False: it has none, or another job's. ret_launcher: static. */
bool pb_member_read(const char *environment, size_t length, const char *match, struct pb_cluster_rank *ret,
                    uint32_t *ret_world, const char **ret_launcher);
