/* look: which ranks the nodes have; see job.h. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cluster/job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct pb_cluster *c = arg;

    snprintf(c->nodes[node].version, sizeof(c->nodes[node].version), "%s", answer->version);
    /* All or nothing: a node that tells of ranks which are another's is not believed at all. */
    for (size_t i = 0; i < answer->nranks; i++) {
        const struct pb_cluster_rank *other = pb_cluster_find_rank(c, answer->ranks[i].rank.rank);
        if (other)
            return pb_fail(err, -EEXIST, "it says that it has rank %d, which %s has", other->rank,
                           c->nodes[other->node].name);
    }
    for (size_t i = 0; i < answer->nranks; i++) {
        struct pb_cluster_rank rank = answer->ranks[i].rank;
        rank.node = (uint32_t)node;
        int r = pb_cluster_add_rank(c, &rank);
        if (r < 0)
            return pb_fail(err, r, "its ranks cannot be kept: %s", strerror(-r));
    }
    c->world = answer->world > c->world ? answer->world : c->world;
    return 0;
}

static int compute_roles(struct pb_cluster *c, struct pb_err *err)
{
    for (size_t i = 0; c->layout[0] && i < c->nranks; i++) {
        int r = pb_roles_compute(c->layout, c->world ? c->world : (uint32_t)c->nranks,
                                 (uint32_t)c->ranks[i].rank, &c->ranks[i].roles, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int pb_cluster_look(struct pb_cluster *c, unsigned deadline_ms, struct pb_cluster_result *ret,
                    struct pb_err *err)
{
    _cleanup_(pb_selection_done) struct pb_selection s = {0};
    static const char *const words[] = {"look"};
    struct pb_cluster_question q = {.selection = &s,
                                    .words = words,
                                    .nwords = 1,
                                    .deadline_ms = deadline_ms,
                                    .most = 1 << 20,
                                    .answer = take_answer,
                                    .arg = c};
    struct timespec now;

    c->nranks = 0;
    c->world = 0;
    int r = pb_select(c, NULL, NULL, &s, err);
    if (r == 0)
        r = pb_cluster_ask(c, &q, ret, err);
    if (r < 0)
        return r;
    clock_gettime(CLOCK_REALTIME, &now);
    c->seen_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    r = compute_roles(c, err);
    if (r < 0)
        pb_cluster_result_done(ret);
    return r;
}
