/* ask_parts: one question to all nodes, in the ways by which they are reached; see ask_nodes.h.
 *
 * Nodes with a service are asked through it, the others through the launcher, at the same time. A node whose
 * service is not there any more is asked through the launcher a moment later. */
#include "cluster/link/ask_part.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/link/own_service.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    DEADLINE_MS = 2000,
    PLACES_MS = 20, /* nodes that wait for places are started by time too */
    GATHER_MS =
        50, /* after the first node has fallen back: a launcher of all nodes is started once for all */
    BY_SERVICE = 0,
    BY_LAUNCHER,
    FALLEN,
    PARTS
};

struct parts {
    struct pb_ask_part_plan plan; /* without a cluster and a selection: of all parts */
    const struct pb_cluster *c;
    struct pb_cluster by_service; /* the cluster with the services' addresses in place of the nodes' */
    struct pb_selection selections[PARTS];
    struct pb_ask_part *at[PARTS];
    bool *fallen;
    uint64_t first_fall; /* 0: none yet */
};

static void parts_done(struct parts *p)
{
    for (int i = 0; i < PARTS; i++) {
        pb_ask_part_free(p->at[i]);
        free(p->selections[i].node);
    }
    free(p->by_service.nodes);
    free(p->fallen);
}

static int open_part(struct parts *p, int which, const struct pb_cluster *c, bool *fallen)
{
    struct pb_ask_part_plan plan = p->plan;

    if (!p->selections[which].asked)
        return 0;
    plan.link.c = c;
    plan.link.selection = &p->selections[which];
    /* A launcher of all nodes can be reused only for the same nodes, and the nodes that fall back change. A
     * task of Ray has no input beyond its question. */
    plan.link.keep =
        p->plan.q->links && c->way != PB_WAY_RAY && !(which == FALLEN && pb_way_is_labelled(c->way));
    plan.fallen = fallen;
    return pb_ask_part_open(&plan, &p->at[which]);
}

static int copy_services(struct parts *p)
{
    p->by_service = *p->c;
    p->by_service.way = PB_WAY_SERVICES;
    p->by_service.nodes = calloc(p->c->nnodes + 1, sizeof(*p->by_service.nodes));
    if (!p->by_service.nodes)
        return -ENOMEM;
    memcpy(p->by_service.nodes, p->c->nodes, p->c->nnodes * sizeof(*p->c->nodes));
    for (size_t i = 0; i < p->c->nnodes; i++)
        if (p->c->nodes[i].service[0])
            strcpy(p->by_service.nodes[i].address, p->c->nodes[i].service);
    return 0;
}

static int divide(struct parts *p)
{
    const struct pb_selection *all = p->plan.q->selection;
    bool any = false;

    for (int i = 0; i < PARTS; i++) {
        p->selections[i] = *all;
        p->selections[i].asked = 0;
        p->selections[i].node = calloc(all->nnodes + 1, sizeof(bool));
        if (!p->selections[i].node)
            return -ENOMEM;
    }
    for (size_t i = 0; i < all->nnodes; i++) {
        bool served = !pb_way_is_socket(p->c->way) && p->c->nodes[i].service[0] &&
                      !(p->plan.q->links && pb_links_has_child(p->plan.q->links, i));
        struct pb_selection *s = &p->selections[served ? BY_SERVICE : BY_LAUNCHER];
        s->node[i] = all->node[i];
        s->asked += all->node[i];
        any = any || (served && all->node[i]);
    }
    int r = open_part(p, BY_LAUNCHER, p->c, NULL);
    if (r < 0 || !any)
        return r;
    p->fallen = calloc(all->nnodes + 1, sizeof(*p->fallen));
    r = p->fallen ? copy_services(p) : -ENOMEM;
    return r < 0 ? r : open_part(p, BY_SERVICE, &p->by_service, p->fallen);
}

/* Those whose service is gone, all at once. Any that follow are settled as what they are. */
static int ask_fallen(struct parts *p)
{
    struct pb_ask_part *services = p->at[BY_SERVICE];

    if (!services || p->at[FALLEN] || !pb_ask_part_state(services).fallen)
        return 0;
    uint64_t now = pb_now_ns();
    p->first_fall = p->first_fall ? p->first_fall : now;
    if (pb_ask_part_state(services).left && now - p->first_fall < GATHER_MS * PB_NS_PER_MS)
        return 0;
    struct pb_selection *s = &p->selections[FALLEN];
    for (size_t i = 0; i < s->nnodes; i++)
        s->asked += s->node[i] = p->fallen[i];
    pb_ask_part_settle_all(services);
    return open_part(p, FALLEN, p->c, NULL);
}

static size_t count_left(const struct parts *p)
{
    size_t left = 0;

    for (int i = 0; i < PARTS; i++)
        left += p->at[i] ? pb_ask_part_state(p->at[i]).left : 0;
    return left + (p->at[BY_SERVICE] && !p->at[FALLEN] ? pb_ask_part_state(p->at[BY_SERVICE]).fallen : 0);
}

static int wait_and_turn(struct parts *p)
{
    struct pollfd fds[PARTS];
    uint64_t now = pb_now_ns();
    bool gathering = p->first_fall && !p->at[FALLEN];

    if (now >= p->plan.deadline)
        return 0;
    int ms = (int)((p->plan.deadline - now) / PB_NS_PER_MS) + 1;
    for (int i = 0; i < PARTS; i++) {
        fds[i] = (struct pollfd){.fd = p->at[i] ? pb_ask_part_state(p->at[i]).fd : -1, .events = POLLIN};
        if (((p->at[i] && pb_ask_part_state(p->at[i]).waits) || gathering) && ms > PLACES_MS)
            ms = PLACES_MS;
    }
    if (poll(fds, PARTS, ms) < 0 && errno != EINTR)
        return -errno;
    for (int i = 0; i < PARTS; i++) {
        int r = p->at[i] && fds[i].revents ? pb_ask_part_turn(p->at[i]) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int ask_parts(struct parts *p)
{
    int r = divide(p);

    while (r == 0 && count_left(p) && pb_now_ns() < p->plan.deadline) {
        r = ask_fallen(p);
        for (int i = 0; r == 0 && i < PARTS; i++)
            r = p->at[i] ? pb_ask_part_start(p->at[i]) : 0;
        if (r == 0 && count_left(p))
            r = wait_and_turn(p);
    }
    for (int i = 0; i < PARTS; i++)
        if (p->at[i])
            pb_ask_part_end(p->at[i]);
    return r;
}

/* Nodes that fell back too late to be asked through the launcher. */
static void settle_rest(const struct parts *p, struct pb_cluster_result *result)
{
    for (size_t i = 0; p->fallen && i < p->c->nnodes; i++) {
        struct pb_node_result *node = &result->nodes[i];
        if (!p->fallen[i] || node->state != PB_NODE_NOT_ASKED)
            continue;
        node->state = PB_NODE_UNREACHABLE;
        strcpy(node->why, "its service is not there any more");
    }
}

int pb_cluster_ask(const struct pb_cluster *c, const struct pb_cluster_question *q,
                   struct pb_cluster_result *ret, struct pb_err *err)
{
    unsigned limit = q->deadline_ms ? q->deadline_ms : DEADLINE_MS;
    struct pb_node_question question = {c->match, q->selection->wanted, limit, q->words, q->nwords};
    struct pb_cluster_result result = {.nnodes = c->nnodes, .asked = q->selection->asked};
    uint64_t began = pb_now_ns();
    _cleanup_(parts_done) struct parts parts = {.c = c};
    _cleanup_free_ char *line = NULL;
    char token[PB_SERVICE_TOKEN] = "", own_token[PB_SERVICE_TOKEN];
    struct rlimit before;
    size_t length;

    int r = pb_question_encode(&question, &line, &length);
    if (r < 0)
        return pb_fail(err, r, r == -E2BIG ? "the question is too long" : "out of memory");
    r = pb_way_is_socket(c->way) ? pb_service_token(c->token_file, token, err) : 0;
    if (r < 0)
        return r;
    parts.plan = (struct pb_ask_part_plan){.link = {.question = line, .length = length, .deadline_ms = limit},
                                           .q = q,
                                           .result = &result,
                                           .began = began,
                                           .deadline = began + limit * PB_NS_PER_MS};
    pb_own_service_token(own_token);
    parts.plan.link.token = token;
    parts.plan.link.own_token = own_token;
    parts.plan.most_open = pb_links_raise_limit(&before);
    result.nodes = calloc(c->nnodes + 1, sizeof(*result.nodes));
    r = result.nodes ? ask_parts(&parts) : -ENOMEM;
    if (r == 0)
        settle_rest(&parts, &result);
    result.ms = (unsigned)((pb_now_ns() - began) / PB_NS_PER_MS);
    setrlimit(RLIMIT_NOFILE, &before);
    if (r < 0) {
        free(result.nodes);
        return pb_fail(err, r, "the cluster cannot be queried: %s", strerror(-r));
    }
    *ret = result;
    return 0;
}
