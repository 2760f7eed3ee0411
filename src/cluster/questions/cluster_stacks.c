/* cluster_stacks: the stacks of all ranks, merged on each node and then here; see cluster_stacks.h. */
#include "cluster/questions/cluster_stacks.h"

#include "ask/stacks.h"
#include "ask/stackset.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/questions/cluster_answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The status of a rank in an answer. */
enum { READ, FAILED, STILL };

/* --- the node --- */

enum { ROUNDS_MAX = 10, MARGIN_MS = 200 };

struct encoded {
    void *bytes;
    size_t size;
};

/* What is known of one rank over all rounds. */
struct seen {
    struct pb_history history;
    bool failed, moved;
    char text[600];
};

struct taking {
    const struct pb_answering *a;
    struct pb_targets targets;
    struct pb_stacks_options options;
    struct seen *seen;
    struct pb_stacks_answer *answers;
};

static void taking_done(struct taking *t)
{
    for (size_t i = 0; t->seen && i < t->targets.n; i++)
        pb_history_done(&t->seen[i].history);
    free(t->seen);
    free(t->answers);
    free(t->targets.at);
}

static int taking_init(struct taking *t, const struct pb_answering *a)
{
    size_t n = a->members->n;

    t->a = a;
    t->seen = calloc(n + 1, sizeof(*t->seen));
    t->answers = calloc(n + 1, sizeof(*t->answers));
    return t->seen && t->answers ? pb_answer_targets(a, &t->targets) : -ENOMEM;
}

/* Adds the stacks of one rank, and notes whether they changed since the last round. */
static int add_one(struct taking *t, size_t i, struct pb_stackset *set)
{
    const struct pb_stacks_answer *answer = &t->answers[i];
    struct seen *s = &t->seen[i];

    if (answer->result < 0) {
        s->failed = true;
        snprintf(s->text, sizeof(s->text), "%s", pb_err_text(&answer->err, answer->result));
        return 0;
    }
    if (answer->stacks->verdict[0])
        snprintf(s->text, sizeof(s->text), "%s", answer->stacks->verdict);
    bool first = s->history.times == 0;
    if (pb_history_add(&s->history, answer->stacks) == 0 && !first) {
        for (size_t k = 0; k < answer->stacks->n; k++)
            s->moved |= answer->stacks->threads[k].nframes && s->history.change[k] != PB_AS_BEFORE;
    }
    return pb_stackset_add(set, answer->stacks, t->a->members->at[i].rank);
}

/* One look at all ranks; the set of an earlier one is replaced. */
static int take_round(struct taking *t, struct encoded *ret)
{
    struct pb_stackset *set = NULL;
    struct pb_ask ask = t->a->ask;
    uint64_t now = pb_now_ns(), left = t->a->deadline_ns > now ? (t->a->deadline_ns - now) / PB_NS_PER_MS : 0;

    /* Report an unreadable rank before the asking end's deadline for this node. */
    ask.limit_ms = left > 2 * MARGIN_MS ? (unsigned)left - MARGIN_MS : MARGIN_MS;
    int r = pb_stackset_new(&set);
    if (r == 0 && t->targets.n) {
        r = pb_stacks_ask(&ask, &t->targets, &t->options, PB_WAITS_MAIN, t->answers);
        for (size_t i = 0; r == 0 && i < t->targets.n; i++)
            r = add_one(t, i, set);
        pb_stacks_answers_done(t->answers, t->targets.n);
        memset(t->answers, 0, t->targets.n * sizeof(*t->answers));
    }
    free(pb_take_ptr(ret->bytes));
    if (r == 0)
        r = pb_stackset_encode(set, &ret->bytes, &ret->size);
    pb_stackset_free(set);
    return r;
}

int pb_answer_stacks(const struct pb_answering *a, struct pb_err *err)
{
    _cleanup_(taking_done) struct taking t = {0};
    const struct pb_node_question *q = a->question;
    struct encoded last = {0};
    unsigned long n = q->nwords > 1 ? strtoul(q->words[1], NULL, 10) : 1;
    unsigned long interval = q->nwords > 2 ? strtoul(q->words[2], NULL, 10) : 1000;

    if (n < 1 || n > ROUNDS_MAX || interval > 60000)
        return pb_fail(err, -EINVAL, "1 to %d rounds are taken, at most a minute apart", ROUNDS_MAX);
    t.options = (struct pb_stacks_options){.native = q->nwords > 3 && strcmp(q->words[3], "native") == 0,
                                           .native_if_alone = true};
    int r = taking_init(&t, a);
    for (size_t i = 0; r == 0 && i < n; i++) {
        uint64_t began = pb_now_ns();
        r = take_round(&t, &last);
        uint64_t took = pb_now_ns() - began;
        if (i + 1 < n && took < interval * PB_NS_PER_MS)
            pb_sleep_ns(interval * PB_NS_PER_MS - took);
    }
    for (size_t i = 0; r == 0 && i < t.targets.n; i++) {
        const struct seen *s = &t.seen[i];
        pb_answer_rank(a->out, &a->members->at[i], a->members->world);
        pb_answer_bytes(a->out, true, s->text, strlen(s->text));
        pb_answer_exit(a->out, s->failed ? FAILED : n > 1 && !s->moved ? STILL : READ);
    }
    if (r == 0)
        pb_answer_bytes(a->out, false, last.bytes, last.size);
    free(last.bytes);
    return r < 0 ? pb_fail(err, r, "the stacks cannot be merged: %s", strerror(-r)) : 0;
}

/* --- the asking end --- */

void pb_cluster_stacks_done(struct pb_cluster_stacks *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->ranks[i].text);
    free(m->ranks);
    pb_stackset_free(m->set);
    pb_cluster_result_done(&m->result);
    *m = (struct pb_cluster_stacks){0};
}

/* A node may send stacks only of the ranks that its answer lists. */
static bool owns_ranks(void *arg, const struct pb_set_range *range)
{
    const struct pb_node_answer *a = arg;
    uint64_t own = 0;

    for (size_t i = 0; i < a->nranks; i++) {
        uint32_t rank = (uint32_t)a->ranks[i].rank.rank;
        own += rank >= range->first && rank <= range->last;
    }
    return own == (uint64_t)range->last - range->first + 1;
}

static int make_ranks(struct pb_cluster_stacks *m, size_t n)
{
    if (n <= m->n)
        return 0;
    size_t grown = m->n ? m->n : 64;
    while (grown < n)
        grown *= 2;
    struct pb_rank_stacks *more = realloc(m->ranks, grown * sizeof(*more));
    if (!more)
        return -ENOMEM;
    memset(more + m->n, 0, (grown - m->n) * sizeof(*more));
    m->ranks = more;
    m->n = grown;
    return 0;
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct pb_cluster_stacks *m = arg;

    for (size_t i = 0; i < answer->nranks; i++) {
        int32_t rank = answer->ranks[i].rank.rank;
        if (rank >= PB_CLUSTER_RANKS)
            return pb_fail(err, -EBADMSG, "it answers for rank %d, which cannot be", rank);
        if ((size_t)rank < m->n && m->ranks[rank].answered)
            return pb_fail(err, -EEXIST, "it answers for rank %d, for which %s has answered", rank,
                           m->c->nodes[m->ranks[rank].node].name);
    }
    int r = pb_stackset_merge(m->set, answer->output.at, answer->output.n, owns_ranks, answer, err);
    for (size_t i = 0; r == 0 && i < answer->nranks; i++) {
        struct pb_answer_part *p = &answer->ranks[i];
        if (make_ranks(m, (size_t)p->rank.rank + 1) < 0)
            return pb_fail(err, -ENOMEM, "out of memory");
        m->ranks[p->rank.rank] = (struct pb_rank_stacks){.answered = true,
                                                         .failed = p->status != READ && p->status != STILL,
                                                         .still = p->status == STILL,
                                                         .node = (uint32_t)node,
                                                         .text = pb_take_ptr(p->errors.at)};
    }
    return r;
}

int pb_cluster_stacks(const struct pb_cluster *c, const struct pb_cluster_stacks_request *request,
                      struct pb_cluster_stacks *ret, struct pb_err *err)
{
    struct pb_cluster_stacks m = {.c = c, .rounds = request->rounds};
    char rounds[32], ms[32];
    const char *words[] = {"stacks", rounds, ms, "native"};
    const struct pb_cluster_question q = {.selection = request->selection,
                                          .words = words,
                                          .nwords = request->native ? 4 : 3,
                                          .deadline_ms = request->limit_ms +
                                                         (request->rounds - 1) * request->interval_ms,
                                          .links = request->links,
                                          .answer = take_answer,
                                          .arg = &m};

    snprintf(rounds, sizeof(rounds), "%u", request->rounds);
    snprintf(ms, sizeof(ms), "%u", request->interval_ms);
    int r = pb_stackset_new(&m.set);
    if (r == 0)
        r = make_ranks(&m, c->nranks ? (size_t)c->ranks[c->nranks - 1].rank + 1 : 1);
    if (r < 0)
        pb_fail(err, r, "out of memory");
    if (r == 0 && request->no_lines)
        pb_stackset_drop_lines(m.set);
    if (r == 0)
        r = pb_cluster_ask(c, &q, &m.result, err);
    if (r < 0) {
        pb_cluster_stacks_done(&m);
        return r;
    }
    *ret = m;
    return 0;
}
