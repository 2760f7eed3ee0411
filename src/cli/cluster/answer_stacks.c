/* answer_stacks: the stacks of a node's ranks, merged here; see answer.h. */
#include "ask/stacks.h"
#include "ask/stackset.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cluster/answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 10, MARGIN_MS = 200 };

struct round {
    void *bytes;
    size_t size;
};

/* What is known of one rank over all rounds. */
struct seen {
    struct pb_history history;
    bool failed, moved;
    char said[600];
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
    t->targets.at = calloc(n + 1, sizeof(*t->targets.at));
    t->seen = calloc(n + 1, sizeof(*t->seen));
    t->answers = calloc(n + 1, sizeof(*t->answers));
    if (!t->targets.at || !t->seen || !t->answers)
        return -ENOMEM;
    t->targets.n = n;
    for (size_t i = 0; i < n; i++) {
        t->targets.at[i] = (struct pb_target){.pid = a->members->at[i].pid};
        pb_target_set_rank(&t->targets.at[i], a->members->at[i].rank);
    }
    return 0;
}

/* Adds the stacks of one rank, and notes whether they changed since the last round. */
static int add_one(struct taking *t, size_t i, struct pb_stackset *set)
{
    const struct pb_stacks_answer *answer = &t->answers[i];
    struct seen *s = &t->seen[i];

    if (answer->result < 0) {
        s->failed = true;
        snprintf(s->said, sizeof(s->said), "%s", pb_err_text(&answer->err, answer->result));
        return 0;
    }
    if (answer->stacks->verdict[0])
        snprintf(s->said, sizeof(s->said), "%s", answer->stacks->verdict);
    bool first = s->history.times == 0;
    if (pb_history_add(&s->history, answer->stacks) == 0 && !first) {
        for (size_t k = 0; k < answer->stacks->n; k++)
            s->moved |= answer->stacks->threads[k].nframes && s->history.change[k] != PB_AS_BEFORE;
    }
    return pb_stackset_add(set, answer->stacks, t->a->members->at[i].rank);
}

static int take_round(struct taking *t, struct round *ret)
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
    if (r == 0)
        r = pb_stackset_encode(set, &ret->bytes, &ret->size);
    pb_stackset_free(set);
    return r;
}

static void put_rounds(const struct pb_answering *a, const struct round *rounds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t size = rounds[i].size;
        pb_answer_bytes(a->out, false, &size, sizeof(size));
        pb_answer_bytes(a->out, false, rounds[i].bytes, rounds[i].size);
    }
}

int pb_answer_stacks(const struct pb_answering *a, struct pb_err *err)
{
    _cleanup_(taking_done) struct taking t = {0};
    const struct pb_node_question *q = a->question;
    struct round rounds[ROUNDS_MAX] = {0};
    unsigned long n = q->nwords > 1 ? strtoul(q->words[1], NULL, 10) : 1;
    unsigned long interval = q->nwords > 2 ? strtoul(q->words[2], NULL, 10) : 1000;

    if (n < 1 || n > ROUNDS_MAX || interval > 60000)
        return pb_fail(err, -EINVAL, "1 to %d rounds are taken, at most a minute apart", ROUNDS_MAX);
    t.options = (struct pb_stacks_options){.native = q->nwords > 3 && strcmp(q->words[3], "native") == 0,
                                           .native_if_alone = true};
    int r = taking_init(&t, a);
    for (size_t i = 0; r == 0 && i < n; i++) {
        uint64_t begun = pb_now_ns();
        r = take_round(&t, &rounds[i]);
        uint64_t took = pb_now_ns() - begun;
        if (i + 1 < n && took < interval * PB_NS_PER_MS)
            pb_sleep_ns(interval * PB_NS_PER_MS - took);
    }
    for (size_t i = 0; r == 0 && i < t.targets.n; i++) {
        const struct seen *s = &t.seen[i];
        const char *how = s->moved ? "moved" : "still";
        pb_answer_rank(a->out, &a->members->at[i], a->members->world);
        if (n > 1 && !s->failed)
            pb_answer_bytes(a->out, false, how, strlen(how));
        pb_answer_bytes(a->out, true, s->said, strlen(s->said));
        pb_answer_exit(a->out, s->failed);
    }
    if (r == 0)
        put_rounds(a, rounds, n);
    for (size_t i = 0; i < n; i++)
        free(rounds[i].bytes);
    return r < 0 ? pb_fail(err, r, "the stacks cannot be merged: %s", strerror(-r)) : 0;
}
