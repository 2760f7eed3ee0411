/* profile: see profile.h. */
#include "cluster/questions/profile.h"

#include "ask/targets.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cluster/questions/clock.h"
#include "profile/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORDS = 16,
    NODE_MEMORY = 128 << 20,
    PID_END = 1 << 30 /* beyond this, pids of different nodes may collide */
};

void pb_cluster_profile_done(struct pb_cluster_profile *p)
{
    for (size_t i = 0; i < p->nnodes; i++)
        pb_collector_done(&p->nodes[i]);
    free(p->nodes);
    pb_cluster_result_done(&p->result);
    *p = (struct pb_cluster_profile){0};
}

/* A node may send samples only of ranks that it listed. */
static int check_ranks(const struct pb_profile *p, const struct pb_node_answer *a, struct pb_err *err)
{
    for (size_t i = 0; i < pb_profile_nthreads(p); i++) {
        int32_t rank = pb_profile_thread_rank(p, (uint32_t)i);
        bool own = rank < 0;
        for (size_t k = 0; !own && k < a->nranks; k++)
            own = a->ranks[k].rank.rank == rank;
        if (!own)
            return pb_fail(err, -EBADMSG, "it sent samples of rank %d, which does not run there", rank);
    }
    return 0;
}

static void raise_pids(struct pb_cluster_profile *p, const struct pb_profile *names)
{
    pid_t most = 0;

    for (size_t i = 0; i < pb_profile_nthreads(names); i++) {
        struct pb_profile_thread t = pb_profile_thread_at(names, (uint32_t)i);
        most = t.tid > most ? t.tid : most;
        most = t.pid > most ? t.pid : most;
    }
    p->shift = most < PID_END - p->shift ? p->shift + most + 1 : 0;
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct pb_cluster_profile *p = arg;
    struct pb_collector *c = &p->nodes[node];
    struct pb_stream_reader *reader = NULL;

    pb_collector_done(c);
    if (!answer->output.n) {
        p->nranks += answer->nranks;
        return 0; /* it has no rank */
    }
    int r = pb_collector_init(c, NODE_MEMORY);
    c->shift = p->shift;
    const struct pb_sink sink = pb_collector_sink(c);
    if (r == 0)
        r = pb_stream_reader_new(NODE_MEMORY, &sink, &reader);
    if (r == 0)
        r = pb_stream_feed(reader, answer->output.at, answer->output.n);
    if (r == 0 && !pb_stream_ended(reader, &(unsigned){0}))
        r = -EBADMSG;
    if (r < 0) {
        pb_fail(err, r, r == -EBADMSG ? "its samples are damaged, or cut short" : "its samples are too many");
    } else {
        const struct pb_profile *names = pb_stream_names(reader);
        r = check_ranks(names, answer, err);
        pb_collector_sync(c, names);
        raise_pids(p, names);
    }
    pb_stream_reader_free(reader);
    if (r < 0)
        pb_collector_done(c);
    else
        p->nranks += answer->nranks;
    return r;
}

int pb_cluster_profile(const struct pb_cluster *c, const struct pb_cluster_profile_request *request,
                       struct pb_cluster_profile *ret, struct pb_err *err)
{
    struct pb_cluster_profile p = {.c = c, .nnodes = c->nnodes};
    const char *words[WORDS] = {"profile"};
    char ms[32];
    size_t n = 3;

    snprintf(ms, sizeof(ms), "%u", request->duration_ms);
    words[1] = ms;
    words[2] = request->rate ? request->rate : "-";
    for (size_t i = 0; i < request->nflags && n < WORDS; i++)
        words[n++] = request->flags[i];
    p.nodes = calloc(c->nnodes + 1, sizeof(*p.nodes));
    if (!p.nodes)
        return pb_fail(err, -ENOMEM, "out of memory");
    const struct pb_cluster_question q = {.selection = request->selection,
                                          .words = words,
                                          .nwords = n,
                                          .deadline_ms = request->duration_ms + request->patience_ms,
                                          .links = request->links,
                                          .answer = take_answer,
                                          .arg = &p};
    int r = pb_cluster_ask(c, &q, &p.result, err);
    if (r < 0) {
        pb_cluster_profile_done(&p);
        return r;
    }
    *ret = p;
    return 0;
}

void pb_cluster_profile_shift(struct pb_cluster_profile *p, int64_t *ret_error_ns)
{
    int64_t error = 0;

    for (size_t i = 0; i < p->nnodes; i++) {
        const struct pb_cluster_clock *clock = &p->c->nodes[i].clock;
        if (!p->nodes[i].p)
            continue;
        struct pb_profile_clocks *start = &pb_profile_facts(p->nodes[i].p)->start;
        if (!clock->known) {
            error = -1;
            continue;
        }
        start->utc_ns -= clock->offset_ns;
        int64_t off = pb_clock_error_at(clock, start->utc_ns);
        error = error >= 0 && off > error ? off : error;
    }
    *ret_error_ns = error;
}

/* Facts of nodes that sampled at the same time. */
static void add_facts(struct pb_profile_facts *to, const struct pb_profile_facts *f)
{
    struct pb_profile_facts sum = *to;

    if (!sum.clock || !*sum.clock) {
        sum = *f;
    } else {
        sum.duration_ns = f->duration_ns > sum.duration_ns ? f->duration_ns : sum.duration_ns;
        sum.ticks = f->ticks > sum.ticks ? f->ticks : sum.ticks;
        sum.late += f->late;
        sum.asleep += f->asleep;
        sum.interrupted += f->interrupted;
        sum.pinned += f->pinned;
        sum.stopped += f->stopped;
        sum.dead += f->dead;
        sum.refused += f->refused;
        sum.failed += f->failed;
        sum.truncated += f->truncated;
        sum.apart += f->apart;
        sum.outside += f->outside;
        sum.processes += f->processes;
        sum.unverified = sum.unverified || f->unverified;
    }
    *to = sum;
}

static int add_counts(struct pb_collector *to, const struct pb_profile *p)
{
    const struct pb_sink sink = pb_collector_sink(to);
    int r = 0;

    for (size_t i = 0; r == 0 && i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        const struct pb_sample sample = {.thread = c.thread,
                                         .node = c.node,
                                         .flags = c.flags,
                                         .weight = c.samples < UINT32_MAX ? (uint32_t)c.samples : UINT32_MAX};
        r = sink.add(to, p, &sample);
    }
    sink.begin_epoch(to, p);
    return r;
}

int pb_cluster_profile_merge(const struct pb_cluster_profile *p, struct pb_profile **ret)
{
    struct pb_profile_facts facts = {0};
    struct pb_collector all;

    int r = pb_collector_init(&all, 0);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < p->nnodes; i++)
        if (p->nodes[i].p) {
            r = add_counts(&all, p->nodes[i].p);
            add_facts(&facts, pb_profile_facts_of(p->nodes[i].p));
        }
    snprintf(facts.title, sizeof(facts.title), "cluster %s, %zu ranks", p->c->name, p->nranks);
    facts.clock = facts.clock ? facts.clock : "wall";
    *pb_profile_facts(all.p) = facts;
    if (r == 0)
        *ret = pb_take_ptr(all.p);
    pb_collector_done(&all);
    return r;
}
