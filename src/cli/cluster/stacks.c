/* stacks: the stacks of all ranks of a cluster, merged on the nodes and then here; see job.h.
 *
 * Classes of equal stacks, the rarest first, each with its ranks as ranges, what they have in common, and
 * with two rounds which of them stand still. */
#include "ask/stackset.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_write.h"
#include "base/time.h"
#include "cli/cluster/job.h"
#include "cli/print/stacks_print.h"
#include "cli/values.h"
#include "cluster/link/link.h"
#include "print/outlet.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct rank_seen {
    bool answered, failed, still;
    uint32_t node;
    char *said;
};

struct merging {
    const struct pb_cluster *c;
    unsigned long rounds;
    struct pb_stackset *set;
    struct rank_seen *ranks; /* by rank */
    size_t n;
};

static void merging_done(struct merging *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->ranks[i].said);
    free(m->ranks);
    pb_stackset_free(m->set);
}

/* A node may speak of the ranks that it said it has, and of no other's. */
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

/* Merges the last of the rounds. */
static int merge_last(const struct merging *m, struct pb_node_answer *answer, struct pb_err *err)
{
    const unsigned char *at = (const unsigned char *)answer->output.at;
    struct pb_cursor c = {.at = at, .end = at + answer->output.n};

    for (unsigned long i = 0; i < m->rounds; i++) {
        uint64_t size = pb_u64(&c);
        const void *set = pb_span(&c, size);
        if (!set)
            return pb_fail(err, -EBADMSG, "its stacks are cut short");
        if (i + 1 == m->rounds)
            return pb_stackset_merge(m->set, set, size, owns_ranks, answer, err);
    }
    return -EBADMSG;
}

static int make_ranks(struct merging *m, size_t n)
{
    if (n <= m->n)
        return 0;
    size_t grown = m->n ? m->n : 64;
    while (grown < n)
        grown *= 2;
    struct rank_seen *more = realloc(m->ranks, grown * sizeof(*more));
    if (!more)
        return -ENOMEM;
    memset(more + m->n, 0, (grown - m->n) * sizeof(*more));
    m->ranks = more;
    m->n = grown;
    return 0;
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct merging *m = arg;

    for (size_t i = 0; i < answer->nranks; i++) {
        int32_t rank = answer->ranks[i].rank.rank;
        if (rank >= PB_CLUSTER_RANKS)
            return pb_fail(err, -EBADMSG, "it answers for rank %d, which cannot be", rank);
        if ((size_t)rank < m->n && m->ranks[rank].answered)
            return pb_fail(err, -EEXIST, "it answers for rank %d, for which %s has answered", rank,
                           m->c->nodes[m->ranks[rank].node].name);
    }
    int r = merge_last(m, answer, err);
    for (size_t i = 0; r == 0 && i < answer->nranks; i++) {
        struct pb_answer_part *p = &answer->ranks[i];
        if (make_ranks(m, (size_t)p->rank.rank + 1) < 0)
            return pb_fail(err, -ENOMEM, "out of memory");
        m->ranks[p->rank.rank] =
            (struct rank_seen){.answered = true,
                               .failed = p->status != 0,
                               .still = p->output.n == 5 && memcmp(p->output.at, "still", 5) == 0,
                               .node = (uint32_t)node,
                               .said = pb_take_ptr(p->errors.at)};
    }
    return r;
}

/* --- what is shown --- */

/* The ranks of a class, and of them those that stand still. */
static void mark_ranks(const struct merging *m, const struct pb_set_stack *s, bool *in, bool *still,
                       size_t *ret_n, size_t *ret_still)
{
    memset(in, 0, m->n * sizeof(*in));
    memset(still, 0, m->n * sizeof(*still));
    *ret_n = *ret_still = 0;
    for (size_t i = 0; i < s->nranks; i++)
        for (uint64_t k = s->ranks[i].first; k <= s->ranks[i].last && k < m->n; k++) {
            in[k] = true;
            still[k] = m->ranks[k].still;
            ++*ret_n;
            *ret_still += still[k];
        }
}

static void put_class(const struct merging *m, const struct pb_set_stack *s, bool *in, bool *still)
{
    size_t n, nstill;
    char role[128];

    mark_ranks(m, s, in, still, &n, &nstill);
    pb_cluster_common_role(m->c, in, m->n, role, sizeof(role));
    printf("%llu thread%s of %s ", (unsigned long long)s->threads, s->threads == 1 ? "" : "s",
           n == 1 ? "rank" : "ranks");
    pb_cluster_put_ranks(stdout, in, m->n);
    if (role[0])
        printf(" (%s)", role);
    if (m->rounds > 1 && nstill == n) {
        fputs(n == 1 ? ", which stands still" : ", which stand still", stdout);
    } else if (m->rounds > 1 && nstill) {
        fputs(", of which stand still: ", stdout);
        pb_cluster_put_ranks(stdout, still, m->n);
    }
    putchar('\n');
    pb_stacks_put_frames(m->set, s);
}

static void put_text(const struct merging *m, bool *in, bool *still)
{
    size_t stacks = pb_stackset_n(m->set), ranks = 0;

    for (size_t i = 0; i < m->n; i++)
        ranks += m->ranks[i].answered && !m->ranks[i].failed;
    printf("%zu rank%s, %zu thread%s, %zu different stack%s, the rarest first\n", ranks,
           ranks == 1 ? "" : "s", pb_stackset_threads(m->set), pb_stackset_threads(m->set) == 1 ? "" : "s",
           stacks, stacks == 1 ? "" : "s");
    for (size_t i = 0; i < stacks; i++) {
        struct pb_set_stack s;
        pb_stackset_stack(m->set, i, &s);
        putchar('\n');
        put_class(m, &s, in, still);
    }
}

/* Equal sentences once, with their ranks: what each waits for on stdout, what could not be read on stderr. */
static bool put_said(const struct merging *m, bool failed, bool *in)
{
    _cleanup_free_ bool *told = calloc(m->n + 1, sizeof(*told));
    FILE *out = failed ? stderr : stdout;
    bool any = false;

    for (size_t i = 0; told && i < m->n; i++) {
        const struct rank_seen *r = &m->ranks[i];
        if (told[i] || !r->answered || r->failed != failed || !r->said || !r->said[0])
            continue;
        size_t n = 0;
        memset(in, 0, m->n * sizeof(*in));
        for (size_t k = i; k < m->n; k++) {
            const struct rank_seen *o = &m->ranks[k];
            if (o->answered && o->failed == failed && o->said && strcmp(o->said, r->said) == 0) {
                told[k] = in[k] = true;
                n++;
            }
        }
        fputs(n == 1 ? "rank " : "ranks ", out);
        pb_cluster_put_ranks(out, in, m->n);
        fputs(": ", out);
        pb_put_sentence(out, r->said);
        any = true;
    }
    return any;
}

/* The ranks of the class that stand still, as ranges. */
static void put_json_still(struct pb_json_writer *w, const struct merging *m, const bool *still)
{
    pb_json_open(w, "still", '[');
    for (size_t i = 0, last; i < m->n; i = last + 1) {
        for (last = i; still[i] && last + 1 < m->n && still[last + 1];)
            last++;
        if (still[i])
            pb_stacks_put_range(w, (uint32_t)i, (uint32_t)last);
    }
    pb_json_close(w);
}

/* As of processes of one node, and what their ranks have in common. */
static void put_json_class(struct pb_json_writer *w, const struct merging *m, const struct pb_set_stack *s,
                           bool *in, bool *still)
{
    size_t n, nstill;
    char role[128];

    mark_ranks(m, s, in, still, &n, &nstill);
    pb_cluster_common_role(m->c, in, m->n, role, sizeof(role));
    pb_json_open(w, NULL, '{');
    pb_json_put_text(w, "role", role[0] ? role : NULL);
    if (m->rounds > 1)
        put_json_still(w, m, still);
    pb_stacks_put_set_stack(w, m->set, s);
    pb_json_close(w);
}

static void put_json_nodes(struct pb_json_writer *w, const struct merging *m,
                           const struct pb_cluster_result *r)
{
    bool any = false;

    pb_json_put_number(w, "asked", "%zu", r->asked);
    pb_json_put_number(w, "answered", "%zu", r->answered);
    pb_json_put_number(w, "ms", "%u", r->ms);
    pb_json_put_number(w, "bytes", "%zu", r->bytes);
    pb_json_open(w, "nodes", '[');
    for (size_t i = 0; i < r->nnodes; i++) {
        const struct pb_node_result *n = &r->nodes[i];
        if (n->state == PB_NODE_NOT_ASKED)
            continue;
        if (any)
            pb_json_line(w, 2);
        pb_json_open(w, NULL, '{');
        pb_json_put_number(w, "ms", "%u", n->ms);
        pb_json_put_text(w, "node", m->c->nodes[i].name);
        pb_json_put_text(w, "state", pb_node_state_name(n->state));
        pb_json_put_text(w, "why", n->why[0] ? n->why : NULL);
        pb_json_close(w);
        any = true;
    }
    pb_json_close(w);
}

static void put_json(const struct merging *m, const struct pb_cluster_result *r, bool *in, bool *still)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '{');
    put_json_nodes(&w, m, r);
    pb_json_line(&w, 1);
    pb_json_open(&w, "failed", '[');
    for (size_t i = 0; i < m->n; i++)
        if (m->ranks[i].failed) {
            pb_json_open(&w, NULL, '{');
            pb_json_put_number(&w, "rank", "%zu", i);
            pb_json_put_text(&w, "why", m->ranks[i].said);
            pb_json_close(&w);
        }
    pb_json_close(&w);
    pb_json_line(&w, 1);
    pb_json_open(&w, "classes", '[');
    for (size_t i = 0; i < pb_stackset_n(m->set); i++) {
        struct pb_set_stack s;
        pb_stackset_stack(m->set, i, &s);
        if (i)
            pb_json_line(&w, 2);
        put_json_class(&w, m, &s, in, still);
    }
    pb_json_close(&w);
    pb_json_close(&w);
    putchar('\n');
}

static int read_rounds(const struct pb_call *call, unsigned long *ret_rounds, unsigned *ret_interval,
                       struct pb_err *err)
{
    *ret_rounds = (unsigned long)pb_call_number(call, "count");
    *ret_interval = pb_call_ms(call, "interval");
    if (*ret_rounds > 10 || *ret_interval > 60000)
        return pb_fail(err, PB_USAGE, "over a cluster --count is 10 at most, and --interval 1m");
    if (pb_call_option(call, "locals"))
        return pb_fail(err, PB_USAGE, "--locals is not for a cluster: take one rank's process");
    if (call->format == PB_FORMAT_CSV || call->format == PB_FORMAT_TSV)
        return pb_fail(err, PB_USAGE, "over a cluster it prints text or JSON");
    return 0;
}

/* Saved ranks that are missing from the answer of their node. */
static bool tell_missing(const struct merging *m, const struct pb_selection *s,
                         const struct pb_cluster_result *r, bool *gone)
{
    size_t n = 0;

    memset(gone, 0, m->n * sizeof(*gone));
    for (size_t i = 0; i < m->c->nranks; i++) {
        const struct pb_cluster_rank *k = &m->c->ranks[i];
        bool wanted = s->node[k->node] && (!s->wanted || pb_ranges_have(s->wanted, (uint32_t)k->rank));
        if (wanted && r->nodes[k->node].state == PB_NODE_ANSWERED && !m->ranks[k->rank].answered) {
            gone[k->rank] = true;
            n++;
        }
    }
    pb_cluster_tell_gone(gone, m->n, n);
    return n;
}

/* Asks all nodes once and collects the answers. */
static int show_stacks(const struct pb_call *call, const struct pb_cluster *c,
                       const struct pb_cluster_question *question, unsigned long rounds, struct pb_err *err)
{
    _cleanup_(merging_done) struct merging m = {.c = c, .rounds = rounds};
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    struct pb_cluster_question q = *question;
    static char buffer[1 << 16];

    if (pb_stackset_new(&m.set) < 0 ||
        make_ranks(&m, c->nranks ? (size_t)c->ranks[c->nranks - 1].rank + 1 : 1) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (pb_call_option(call, "no-lines"))
        pb_stackset_drop_lines(m.set);
    q.answer = take_answer;
    q.arg = &m;
    int r = pb_cluster_ask(c, &q, &result, err);
    if (r < 0)
        return r;
    _cleanup_free_ bool *in = calloc(m.n + 1, sizeof(*in)), *still = calloc(m.n + 1, sizeof(*still));
    if (!in || !still)
        return pb_fail(err, -ENOMEM, "out of memory");
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    if (call->format == PB_FORMAT_JSON) {
        put_json(&m, &result, in, still);
    } else {
        put_said(&m, false, in);
        put_text(&m, in, still);
    }
    fflush(stdout);
    bool failed = put_said(&m, true, in);
    bool missing = tell_missing(&m, q.selection, &result, in);
    bool all = pb_cluster_tell(c, &result);
    setvbuf(stdout, NULL, _IOLBF, 0);
    return !all || missing || failed ? PB_PARTIAL : 0;
}

/* A launcher of all nodes starts anew for each question; services reuse their connections. */
static bool keeps_links(const struct pb_cluster *c, const struct pb_selection *s)
{
    for (size_t i = 0; pb_way_is_labelled(c->way) && i < s->nnodes; i++)
        if (s->node[i] && !c->nodes[i].service[0])
            return false;
    return true;
}

int pb_cluster_backtrace(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                         struct pb_err *err)
{
    unsigned interval;
    unsigned long n;
    char rounds[32], ms[32];
    const char *words[] = {"stacks", rounds, ms, "native"};
    bool watch = pb_call_option(call, "watch");

    if (pb_call_option(call, "source"))
        return pb_fail(err, PB_USAGE, "--source is for processes of this node (-t HOST:PORT/PID of another)");
    if (pb_call_option(call, "tasks"))
        return pb_fail(err, PB_USAGE, "--tasks is for processes of this node (-t HOST:PORT/PID of another)");
    int r = read_rounds(call, &n, &interval, err);
    if (r < 0)
        return r;
    snprintf(rounds, sizeof(rounds), "%lu", n);
    snprintf(ms, sizeof(ms), "%u", interval);
    /* Ray takes some seconds to start the task that answers. */
    unsigned usual = c->way == PB_WAY_RAY ? 10000 : 2000;
    unsigned limit = !call->timeout_given           ? usual
                     : pb_call_limit(call) < 600000 ? pb_call_limit(call)
                                                    : 600000;
    struct pb_cluster_question q = {.selection = s,
                                    .words = words,
                                    .nwords = pb_call_option(call, "native") ? 4 : 3,
                                    .deadline_ms = limit + (unsigned)(n - 1) * interval};
    if (watch && keeps_links(c, s) && pb_links_new(c, &q.links) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (bool again = false;; again = true) {
        if (again)
            putchar('\n');
        r = show_stacks(call, c, &q, n, err);
        if (!watch || (r < 0 && r != PB_PARTIAL))
            break;
        pb_sleep_ns(interval * PB_NS_PER_MS);
    }
    pb_links_free(q.links);
    return r;
}
