/* ranks_diagnose: what is wrong with a job on several nodes; see ranks.h.
 *
 * Each node looks at its ranks, twice, and returns what it found. Here the parts are one job: chains of
 * waits are followed over all of them, and rules run over all. A node that does not answer is a fact of its
 * ranks. */
#include "ask/tool_settings.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/print/diagnosis_print.h"
#include "cli/ranks/ranks.h"
#include "cluster/questions/cluster_command.h"
#include "diagnose/facts_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_MS = 8000, ROUNDS = 2 };

static bool is_there(const struct pb_diag_job *job, int rank)
{
    for (size_t i = 0; i < job->nprocesses; i++)
        if (job->processes[i].rank == rank && job->processes[i].parent == PB_NOBODY)
            return true;
    return false;
}

/* The ranks that were on these nodes when the cluster was attached, and are in no answer. */
static int add_lost(const struct pb_cluster *c, const struct pb_cluster_result *result, bool *failed,
                    struct pb_diag_job *job, struct pb_err *err)
{
    char why[400];
    int r = 0;

    for (size_t i = 0; r == 0 && i < c->nranks; i++) {
        const struct pb_cluster_rank *rank = &c->ranks[i];
        const struct pb_node_result *n = &result->nodes[rank->node];
        if (n->state == PB_NODE_NOT_ASKED || is_there(job, rank->rank))
            continue;
        bool answered = n->state == PB_NODE_ANSWERED && !failed[rank->node];
        snprintf(why, sizeof(why), "its node %s: %s%s%s", c->nodes[rank->node].name,
                 failed[rank->node] ? "diagnose failed there" : pb_node_state_name(n->state),
                 n->why[0] ? ", " : "", n->why);
        r = pb_diag_facts_add_lost(job, rank->rank, rank->pid, c->nodes[rank->node].name,
                                   answered ? NULL : why);
    }
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}

/* The parts of all nodes as one job. failed: nodes whose command failed. */
static int join_answers(const struct pb_call *call, const struct pb_rank_outputs *all,
                        struct pb_diag_answer *a, bool *failed, struct pb_err *err)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct pb_rank_output *o = &all->at[i];
        const char *node = all->c->nodes[o->rank.node].name;
        struct pb_err why = {0};
        int r = o->status ? pb_fail(&why, -EIO, "%.*s", (int)strcspn(o->errors ? o->errors : "", "\n"),
                                    o->errors ? o->errors : "")
                          : pb_diag_facts_add(a->job, &a->findings, node, o->output ? o->output : "",
                                              o->noutput, &why);
        if (r == -ENOMEM)
            return pb_fail(err, r, "out of memory");
        failed[o->rank.node] = r < 0;
        if (r < 0)
            pb_ask_note(&call->ask, "%s: %s", node, pb_err_without_program(pb_err_text(&why, r)));
    }
    return add_lost(all->c, &all->result, failed, a->job, err);
}

static size_t make_words(const struct pb_call *call, const char *words[4], char since[48])
{
    size_t n = 0;

    words[n++] = "diagnose";
    words[n++] = "--facts";
    if (pb_call_option(call, "no-inject"))
        words[n++] = "--no-inject";
    if (pb_call_option(call, "since")) {
        snprintf(since, 48, "--since=%.30s", pb_call_option(call, "since"));
        words[n++] = since;
    }
    return n;
}

/* One question to all nodes, judged. *ret_whole: all of them answered. */
static int ask_once(const struct pb_call *call, const struct pb_cluster *c, const struct pb_selection *s,
                    bool again, struct pb_diagnosis *d, unsigned *ret_left_ms, bool *ret_whole,
                    struct pb_err *err)
{
    _cleanup_(pb_rank_outputs_done) struct pb_rank_outputs all = {0};
    _cleanup_free_ bool *failed = calloc(c->nnodes + 1, sizeof(*failed));
    const char *words[4];
    char since[48];

    pb_diagnosis_done(d);
    d->jobs.at = calloc(1, sizeof(*d->jobs.at));
    d->at = calloc(1, sizeof(*d->at));
    if (!d->jobs.at || !d->at || !failed)
        return pb_fail(err, -ENOMEM, "out of memory");
    d->jobs.n = d->n = 1;
    d->at[0].job = &d->jobs.at[0];
    d->jobs.at[0].joined = true;
    d->jobs.at[0].looked_again = again;
    size_t n = make_words(call, words, since);
    int r = pb_rank_outputs_ask_once(c, s, words, n, LIMIT_MS, &all, err);
    if (r == 0)
        r = join_answers(call, &all, &d->at[0], failed, err);
    if (r == 0)
        r = pb_diagnose_joined(&call->ask, pb_tool_setting_get(PB_TOOL_DIAGNOSE_RULES), &d->at[0],
                               ret_left_ms, err);
    *ret_whole = r < 0 || *ret_left_ms || pb_cluster_tell(c, &all.result);
    for (size_t i = 0; i < c->nnodes; i++)
        *ret_whole &= !failed[i];
    return r;
}

int pb_cluster_diagnose(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                        struct pb_err *err)
{
    static const char *const here[] = {"watch", "every", "rules", "explain", "facts"};
    _cleanup_(pb_diagnosis_done) struct pb_diagnosis d = {0};
    uint64_t from = pb_now_ns();
    unsigned left = 1;
    bool whole = true;
    int r = 0;

    for (size_t i = 0; i < sizeof(here) / sizeof(here[0]); i++)
        if (pb_call_option(call, here[i]))
            return pb_fail(err, PB_USAGE, "--%s is not for -t cluster", here[i]);
    if (call->ranks || call->nodes)
        return pb_fail(err, PB_USAGE, "a job is judged as a whole: leave --ranks and --nodes out");
    for (int round = 0; r == 0 && left && round < ROUNDS; round++) {
        if (round)
            pb_sleep_ns(left * PB_NS_PER_MS);
        r = ask_once(call, c, s, round > 0, &d, &left, &whole, err);
    }
    if (r < 0)
        return r;
    d.seconds = (double)(pb_now_ns() - from) / 1e9;
    if (pb_call_option(call, "json"))
        pb_diagnosis_print_json(&d);
    else
        pb_diagnosis_print(&d);
    return d.at[0].verdict ? PB_FOUND : whole && d.at[0].answered == d.at[0].asked ? 0 : PB_PARTIAL;
}
