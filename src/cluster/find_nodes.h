/* find_nodes: the nodes of a job, by what its launcher knows. */
#pragma once

#include "cluster/cluster.h"

struct pb_ask;

/* How they are to be found; one at most is set. None: by the environment of this process and what runs
 * here. */
struct pb_cluster_find {
    const char *services, *hosts, *slurm, *kubernetes; /* addresses; a file; a job; labels */
    bool mpi, ray, local;
};

/* Fills name (where it is ""), way, job, match and nodes. -EINVAL: a given text that cannot be. */
int pb_cluster_find(const struct pb_ask *ask, const struct pb_cluster_find *given, struct pb_cluster *c,
                    struct pb_err *err);
/* Replaces the saved nodes by those that the launcher lists now. Without such a list (ssh, services) they
 * stay. */
int pb_cluster_find_again(struct pb_cluster *c, struct pb_err *err);
