/* cluster_profile: samples of all ranks for a while; see cluster_profile.h. */
#include "cluster/questions/cluster_profile.h"

#include "ask/process_settings.h"
#include "ask/profiles.h"
#include "ask/targets.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/questions/cluster_answer.h"
#include "cluster/questions/cluster_clock.h"
#include "profile/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the node --- */

enum { DURATION_MAX_MS = 3600000 };
#define SEND_EVERY_NS (PB_NS_PER_S / 2)
#define FULL_RATE     1000 /* Hz; probing.sample_rate is a share of it */

static void profiling_cleanup(struct pb_profiling **p)
{
    pb_profiling_free(*p);
}

/* "profile" MS RATE|- FLAGS.. */
static int read_request(const struct pb_answering *a, const struct pb_targets *targets,
                        struct pb_profiling_options *ret, struct pb_err *err)
{
    const struct pb_node_question *q = a->question;
    unsigned long ms = q->nwords > 2 ? strtoul(q->words[1], NULL, 10) : 0;
    struct pb_sampler_options *s = &ret->sampler;
    const struct {
        const char *name;
        bool *to;
    } flags[] = {{"cpu", &s->cpu},         {"gil", &s->gil},     {"native", &s->native},
                 {"no-stop", &s->no_stop}, {"force", &s->force}, {"subprocesses", &s->subprocesses}};

    *ret = (struct pb_profiling_options){.duration_ns = ms * PB_NS_PER_MS};
    s->with_gil = true;
    if (ms < 1 || ms > DURATION_MAX_MS)
        return pb_fail(err, -EINVAL, "a profile takes 1 ms to an hour");
    if (strcmp(q->words[2], "-") == 0) {
        struct pb_settings settings;
        pb_settings_for(&a->ask, targets->n ? &targets->at[0] : NULL, &settings);
        s->rate = settings.at[PB_SET_SAMPLE_RATE].number * FULL_RATE;
    } else {
        s->rate = strtod(q->words[2], NULL);
    }
    if (!(s->rate >= 0.01 && s->rate <= 1e6))
        return pb_fail(err, -EINVAL, "'%.40s' is no rate", q->words[2]);
    for (size_t i = 3; i < q->nwords; i++)
        for (size_t k = 0; k < sizeof(flags) / sizeof(flags[0]); k++)
            if (strcmp(q->words[i], flags[k].name) == 0)
                *flags[k].to = true;
    return 0;
}

/* Drops a frame that is too long and continues with the next. */
static void send_samples(const struct pb_answering *a, struct pb_profiling *p, struct pb_stream_writer *w)
{
    const void *frame;

    int n = pb_stream_frame(w, pb_profiling_profile(p), &frame);
    if (n > 0)
        pb_answer_bytes(a->out, false, frame, (size_t)n);
    pb_answer_flush(a->out);
}

static int sample(const struct pb_answering *a, const struct pb_targets *targets, struct pb_err *err)
{
    _cleanup_(profiling_cleanup) struct pb_profiling *p = NULL;
    struct pb_profiling_options options;
    struct pb_stream_writer writer;
    enum pb_profiling_state state = PB_PROFILING_GOES_ON;

    pb_stream_writer_init(&writer);
    struct pb_sink sink = pb_stream_sink(&writer);
    int r = read_request(a, targets, &options, err);
    options.sink = &sink;
    if (r == 0)
        r = pb_profiling_new(&options, &p, err);
    if (r == 0)
        r = pb_profiling_join_all(p, &a->ask, targets, err);
    if (r == 0)
        pb_sampler_hurry(&options.sampler);
    /* An asking end that has left is noticed by the next write. */
    while (r == 0 && state == PB_PROFILING_GOES_ON && !a->out->failed) {
        state = pb_profiling_run(p, SEND_EVERY_NS);
        pb_profiling_sum_up(p);
        if (state != PB_PROFILING_GOES_ON)
            pb_stream_end(&writer, state);
        send_samples(a, p, &writer);
    }
    pb_stream_writer_done(&writer);
    return r;
}

int pb_answer_profile(const struct pb_answering *a, struct pb_err *err)
{
    _cleanup_(pb_targets_done) struct pb_targets targets = {0};

    if (pb_answer_targets(a, &targets) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    pb_answer_ranks(a);
    return targets.n ? sample(a, &targets, err) : 0;
}

/* --- the asking end --- */

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
        int32_t rank = pb_profile_thread_at(p, (uint32_t)i).rank;
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
