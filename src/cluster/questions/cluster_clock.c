/* cluster_clock: the asking end; see cluster_clock.h. The node's is cluster_clock_answer.c. */
#include "cluster/questions/cluster_clock.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/process.h"
#include "base/time.h"
#include "cluster/link/link.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ROUND_MS = 250,       /* an exchange over a link that is open takes no longer */
    TOGETHER = 64,        /* so many nodes, or fewer, are asked one by one: no answer waits for another's */
    ROUNDING_NS = 1000,   /* of the times themselves */
    DRIFT_PER_MS = 50,    /* ns: 50 ppm, what cheap oscillators differ by */
    RENEW_LIMIT_MS = 2000 /* of all nodes */
};

struct measuring {
    struct pb_cluster *c;
    int64_t (*reported)[2];          /* of each node, in its last exchange: (2) and (3) */
    struct pb_cluster_clock *clocks; /* the best up to now */
};

static int take_times(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct measuring *m = arg;
    int64_t *reported = m->reported[node];

    if (!answer->output.n ||
        sscanf(answer->output.at, "%" SCNd64 " %" SCNd64, &reported[0], &reported[1]) != 2 ||
        reported[0] < 0 || reported[1] < reported[0])
        return pb_fail(err, -EBADMSG, "malformed answer about its clock");
    return 0;
}

/* Only trips that were shorter than those before count. */
static void take_exchange(struct measuring *m, size_t node, const struct pb_node_result *r)
{
    const int64_t *reported = m->reported[node];
    struct pb_cluster_clock *clock = &m->clocks[node];
    int64_t there = reported[0] - r->sent_ns, back = reported[1] - r->received_ns, trip = there - back;

    /* Less than nothing: a clock was set meanwhile. */
    if (trip < 0 || (clock->known && trip / 2 + ROUNDING_NS >= clock->error_ns))
        return;
    *clock = (struct pb_cluster_clock){true, back + trip / 2, trip / 2 + ROUNDING_NS, r->received_ns};
}

static int ask_round(struct measuring *m, const struct pb_selection *s, struct pb_links *links,
                     unsigned deadline_ms, struct pb_err *err)
{
    static const char *const words[] = {PB_CLOCK_WORD};
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    const struct pb_cluster_question q = {.selection = s,
                                          .words = words,
                                          .nwords = 1,
                                          .deadline_ms = deadline_ms,
                                          .most = 4096,
                                          .links = links,
                                          .answer = take_times,
                                          .arg = m};

    int r = pb_cluster_ask(m->c, &q, &result, err);
    for (size_t i = 0; r == 0 && i < result.nnodes; i++)
        if (result.nodes[i].state == PB_NODE_ANSWERED)
            take_exchange(m, i, &result.nodes[i]);
    return r;
}

/* Nodes that answered the first round, in groups: each group finishes all its exchanges before the next
 * begins. together: one launcher reaches all these nodes, so they are one group. */
static int ask_groups(struct measuring *m, const struct pb_selection *s, bool together,
                      struct pb_links *links, uint64_t end, struct pb_err *err)
{
    struct pb_selection some = *s;
    size_t group = together ? s->nnodes : 1 + s->asked / TOGETHER;
    bool labelled = pb_way_is_labelled(m->c->way);
    int r = 0;

    some.node = calloc(s->nnodes + 1, sizeof(*some.node));
    if (!some.node)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t at = 0; r == 0 && at < s->nnodes && pb_now_ns() < end;) {
        memset(some.node, 0, s->nnodes * sizeof(*some.node));
        for (some.asked = 0; at < s->nnodes && some.asked < group; at++)
            some.asked += some.node[at] =
                s->node[at] && m->clocks[at].known && (labelled && !m->c->nodes[at].service[0]) == together;
        for (int i = 1; r == 0 && some.asked && i < PB_CLOCK_EXCHANGES && pb_now_ns() < end; i++)
            r = ask_round(m, &some, links, ROUND_MS, err);
    }
    free(some.node);
    return r;
}

int pb_cluster_measure(struct pb_cluster *c, const struct pb_selection *s, struct pb_links *links,
                       unsigned limit_ms, struct pb_err *err)
{
    uint64_t end = pb_now_ns() + limit_ms * PB_NS_PER_MS;
    _cleanup_free_ struct pb_cluster_clock *clocks = calloc(c->nnodes + 1, sizeof(*clocks));
    struct measuring m = {c, calloc(c->nnodes + 1, sizeof(*m.reported)), clocks};
    struct pb_links *own = NULL;

    int r = clocks && m.reported ? 0 : -ENOMEM;
    if (r == 0 && !links)
        r = pb_links_new(c, &own);
    if (r < 0)
        pb_fail(err, r, "out of memory");
    links = links ? links : own;
    if (r == 0)
        r = ask_round(&m, s, links, limit_ms, err);
    if (r == 0)
        r = ask_groups(&m, s, false, links, end, err);
    if (r == 0 && pb_way_is_labelled(c->way))
        r = ask_groups(&m, s, true, links, end, err);
    for (size_t i = 0; r == 0 && i < c->nnodes; i++)
        if (clocks[i].known)
            c->nodes[i].clock = clocks[i];
    pb_links_free(own);
    free(m.reported);
    return r;
}

int pb_cluster_renew_clocks(struct pb_cluster *c, struct pb_links *links, struct pb_err *err)
{
    _cleanup_(pb_selection_done) struct pb_selection s = {0};

    int r = pb_select(c, NULL, NULL, &s, err);
    if (r == 0)
        r = pb_cluster_measure(c, &s, links, RENEW_LIMIT_MS, err);
    return r < 0 ? r : pb_cluster_save_clocks(c, err);
}

int64_t pb_clock_error_at(const struct pb_cluster_clock *clock, int64_t at_ns)
{
    int64_t age = at_ns > clock->at_ns ? at_ns - clock->at_ns : clock->at_ns - at_ns;

    return clock->error_ns + age / (int64_t)PB_NS_PER_MS * DRIFT_PER_MS;
}

/* --- while a command runs --- */

/* The first measurement comes soon, since the stored one may be old; then the interval grows: a drift of 10
 * ppm is 0.1 ms in 10 s. */
enum { FIRST_S = 1, EVERY_S = 10 };

pid_t pb_clocks_follow(const struct pb_cluster *c)
{
    struct pb_cluster own;
    struct pb_err err = {0};
    struct pb_links *links = NULL;
    unsigned wait_s = FIRST_S;
    pid_t parent = getpid(), child = pb_process_fork(SIGKILL);

    if (child != 0)
        return child < 0 ? 0 : child;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    while (getppid() == parent) {
        pb_sleep_ns(wait_s * PB_NS_PER_S);
        wait_s = 2 * wait_s < EVERY_S ? 2 * wait_s : EVERY_S;
        /* Read the file again each time: a refresh may have changed it. Links belong to its nodes. */
        if (pb_cluster_load(c->name, &own, &err) < 0)
            break;
        if (pb_links_new(&own, &links) == 0)
            pb_cluster_renew_clocks(&own, links, &err);
        pb_links_free(links);
        links = NULL;
        pb_cluster_done(&own);
    }
    _exit(0);
}

void pb_clocks_end(pid_t child)
{
    if (child <= 0)
        return;
    kill(child, SIGKILL);
    pb_process_wait(child);
}
