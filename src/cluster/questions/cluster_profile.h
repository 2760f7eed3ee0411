/* cluster_profile: samples of all ranks of a cluster: each node samples its own, and sends them as a stream
 * (profile/stream.h), which is read here as untrusted input. */
#pragma once

#include "cluster/link/ask_nodes.h"
#include "profile/sink.h"

struct pb_cluster_profile_request {
    const struct pb_selection *selection;
    unsigned duration_ms;
    unsigned patience_ms;     /* beyond that */
    const char *rate;         /* Hz; NULL: as it is set there */
    const char *const *flags; /* "cpu", "gil", "native", "no-stop", "force", "subprocesses" */
    size_t nflags;
    struct pb_links *links; /* as in struct pb_cluster_question */
};

struct pb_cluster_profile {
    const struct pb_cluster *c;
    struct pb_collector *nodes; /* one a node; p NULL: nothing came of it */
    size_t nnodes, nranks;      /* nranks: of the nodes that answered */
    pid_t shift;                /* what the next node's pids are raised by: those of two nodes must differ */
    struct pb_cluster_result result;
};

int pb_cluster_profile(const struct pb_cluster *c, const struct pb_cluster_profile_request *request,
                       struct pb_cluster_profile *ret, struct pb_err *err);
void pb_cluster_profile_done(struct pb_cluster_profile *p);

/* Brings the clocks of the nodes onto ours, by what is known of them; *ret_error_ns: how far they may be off,
 * -1: of a node with samples nothing is known. */
void pb_cluster_profile_shift(struct pb_cluster_profile *p, int64_t *ret_error_ns);

/* All samples as one profile, without their times. The caller frees it. -ENOMEM, -ENOSPC. */
int pb_cluster_profile_merge(const struct pb_cluster_profile *p, struct pb_profile **ret);
