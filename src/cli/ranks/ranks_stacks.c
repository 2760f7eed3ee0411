/* ranks_stacks: backtrace over the ranks of a cluster; see ranks.h.
 *
 * Classes of equal stacks, the rarest first, each with its ranks as ranges, what they have in common, and
 * with two rounds which of them stand still. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_write.h"
#include "base/time.h"
#include "cli/print/stacks_print.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"
#include "cluster/link/link.h"
#include "cluster/questions/cluster_stacks.h"
#include "print/outlet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The ranks of a class, and of them those that stand still. */
static void mark_ranks(const struct pb_cluster_stacks *m, const struct pb_set_stack *s, bool *in, bool *still,
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

static void put_class(const struct pb_cluster_stacks *m, const struct pb_set_stack *s, bool *in, bool *still)
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

static void put_text(const struct pb_cluster_stacks *m, bool *in, bool *still)
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
static bool put_texts(const struct pb_cluster_stacks *m, bool failed, bool *in)
{
    _cleanup_free_ bool *shown = calloc(m->n + 1, sizeof(*shown));
    FILE *out = failed ? stderr : stdout;
    bool any = false;

    for (size_t i = 0; shown && i < m->n; i++) {
        const struct pb_rank_stacks *r = &m->ranks[i];
        if (shown[i] || !r->answered || r->failed != failed || !r->text || !r->text[0])
            continue;
        size_t n = 0;
        memset(in, 0, m->n * sizeof(*in));
        for (size_t k = i; k < m->n; k++) {
            const struct pb_rank_stacks *o = &m->ranks[k];
            if (o->answered && o->failed == failed && o->text && strcmp(o->text, r->text) == 0) {
                shown[k] = in[k] = true;
                n++;
            }
        }
        fputs(n == 1 ? "rank " : "ranks ", out);
        pb_cluster_put_ranks(out, in, m->n);
        fputs(": ", out);
        pb_put_sentence(out, r->text);
        any = true;
    }
    return any;
}

/* The ranks of the class that stand still, as ranges. */
static void put_json_still(struct pb_json_writer *w, const struct pb_cluster_stacks *m, const bool *still)
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
static void put_json_class(struct pb_json_writer *w, const struct pb_cluster_stacks *m,
                           const struct pb_set_stack *s, bool *in, bool *still)
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

static void put_json_nodes(struct pb_json_writer *w, const struct pb_cluster_stacks *m,
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

static void put_json(const struct pb_cluster_stacks *m, bool *in, bool *still)
{
    struct pb_json_writer w = {.out = stdout};

    pb_json_open(&w, NULL, '{');
    put_json_nodes(&w, m, &m->result);
    pb_json_line(&w, 1);
    pb_json_open(&w, "failed", '[');
    for (size_t i = 0; i < m->n; i++)
        if (m->ranks[i].failed) {
            pb_json_open(&w, NULL, '{');
            pb_json_put_number(&w, "rank", "%zu", i);
            pb_json_put_text(&w, "why", m->ranks[i].text);
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

static int read_request(const struct pb_call *call, const struct pb_cluster *c,
                        struct pb_cluster_stacks_request *ret, struct pb_err *err)
{
    /* Ray takes some seconds to start the task that answers. */
    const unsigned usual = c->way == PB_WAY_RAY ? 10000 : 2000, most = 600000, limit = pb_call_limit(call);
    unsigned long rounds = (unsigned long)pb_call_number(call, "count");

    if (pb_call_option(call, "source"))
        return pb_fail(err, PB_USAGE, "--source is for processes of this node (-t HOST:PORT/PID of another)");
    if (pb_call_option(call, "tasks"))
        return pb_fail(err, PB_USAGE, "--tasks is for processes of this node (-t HOST:PORT/PID of another)");
    ret->interval_ms = pb_call_ms(call, "interval");
    if (rounds > 10 || ret->interval_ms > 60000)
        return pb_fail(err, PB_USAGE, "over a cluster --count is 10 at most, and --interval 1m");
    if (pb_call_option(call, "locals"))
        return pb_fail(err, PB_USAGE, "--locals is not for a cluster: take one rank's process");
    if (call->format == PB_FORMAT_CSV || call->format == PB_FORMAT_TSV)
        return pb_fail(err, PB_USAGE, "over a cluster it prints text or JSON");
    ret->rounds = (unsigned)rounds;
    ret->limit_ms = !call->timeout_given ? usual : limit < most ? limit : most;
    ret->native = pb_call_option(call, "native");
    ret->no_lines = pb_call_option(call, "no-lines");
    return 0;
}

static bool has_answered(const void *arg, int32_t rank)
{
    const struct pb_cluster_stacks *m = arg;

    return (size_t)rank < m->n && m->ranks[rank].answered;
}

/* Asks all nodes once and prints the answers. */
static int show_stacks(const struct pb_call *call, const struct pb_cluster *c,
                       const struct pb_cluster_stacks_request *request, struct pb_err *err)
{
    _cleanup_(pb_cluster_stacks_done) struct pb_cluster_stacks m = {0};
    static char buffer[1 << 16];

    int r = pb_cluster_stacks(c, request, &m, err);
    if (r < 0)
        return r;
    _cleanup_free_ bool *in = calloc(m.n + 1, sizeof(*in)), *still = calloc(m.n + 1, sizeof(*still));
    if (!in || !still)
        return pb_fail(err, -ENOMEM, "out of memory");
    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    if (call->format == PB_FORMAT_JSON) {
        put_json(&m, in, still);
    } else {
        put_texts(&m, false, in);
        put_text(&m, in, still);
    }
    fflush(stdout);
    bool failed = put_texts(&m, true, in);
    bool missing = pb_cluster_tell_missing(c, request->selection, &m.result, has_answered, &m);
    bool all = pb_cluster_tell(c, &m.result);
    setvbuf(stdout, NULL, _IOLBF, 0);
    return !all || missing || failed ? PB_PARTIAL : 0;
}

/* A launcher of all nodes starts again for each question; services reuse their connections. */
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
    struct pb_cluster_stacks_request request = {.selection = s};
    bool watch = pb_call_option(call, "watch");

    int r = read_request(call, c, &request, err);
    if (r < 0)
        return r;
    if (watch && keeps_links(c, s) && pb_links_new(c, &request.links) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (bool again = false;; again = true) {
        if (again)
            putchar('\n');
        r = show_stacks(call, c, &request, err);
        if (!watch || (r < 0 && r != PB_PARTIAL))
            break;
        pb_sleep_ns(request.interval_ms * PB_NS_PER_MS);
    }
    pb_links_free(request.links);
    return r;
}
