/* explain: which finding explains which, and which one is the verdict; see finding.h.
 *
 * The table says what follows from what; it is data, and a test holds that it has no circle. A finding that
 * another one explains is a consequence. Of the others that is the verdict which explains most ranks. */
#include "diagnose/finding.h"

#include <stdlib.h>
#include <string.h>

const char *const pb_diag_kinds[] = {
    "rank_gone", "stopped",   "worker_gone", "worker_stopped", "deadlock",     "gil_held",  "mismatch",
    "lock_held", "left_loop", "store_key",   "queue_empty",    "future_unset", "loop",      "blocked_call",
    "nan",       "diverged",  "not_joined",  "hang",           "leak",         "slow_rank", "slow_job",
};
const size_t pb_diag_nkinds = sizeof(pb_diag_kinds) / sizeof(pb_diag_kinds[0]);

/* `cause` explains `effect` of the same rank, in the same group of ranks, or anywhere in the job. */
const struct pb_diag_explains pb_diag_table[] = {
    {"leak", "rank_gone", PB_DIAG_SAME_RANK}, /* only where the rule for rank_gone has proof of OOM */
    {"rank_gone", "not_joined", PB_DIAG_JOB},
    {"rank_gone", "store_key", PB_DIAG_JOB},
    {"rank_gone", "mismatch", PB_DIAG_JOB},
    {"rank_gone", "hang", PB_DIAG_JOB},
    {"stopped", "not_joined", PB_DIAG_JOB},
    {"stopped", "hang", PB_DIAG_JOB},
    {"worker_gone", "not_joined", PB_DIAG_JOB},
    {"worker_gone", "blocked_call", PB_DIAG_SAME_RANK},
    {"worker_gone", "hang", PB_DIAG_JOB},
    {"worker_stopped", "not_joined", PB_DIAG_JOB},
    {"worker_stopped", "blocked_call", PB_DIAG_SAME_RANK},
    {"worker_stopped", "hang", PB_DIAG_JOB},
    {"deadlock", "lock_held", PB_DIAG_SAME_RANK},
    {"deadlock", "blocked_call", PB_DIAG_SAME_RANK},
    {"deadlock", "not_joined", PB_DIAG_JOB},
    {"deadlock", "hang", PB_DIAG_JOB},
    {"gil_held", "lock_held", PB_DIAG_SAME_RANK},
    {"gil_held", "blocked_call", PB_DIAG_SAME_RANK},
    {"gil_held", "loop", PB_DIAG_SAME_RANK},
    {"gil_held", "not_joined", PB_DIAG_JOB},
    {"gil_held", "hang", PB_DIAG_JOB},
    {"lock_held", "not_joined", PB_DIAG_JOB},
    {"lock_held", "hang", PB_DIAG_JOB},
    {"left_loop", "not_joined", PB_DIAG_JOB},
    {"left_loop", "blocked_call", PB_DIAG_SAME_RANK},
    {"left_loop", "hang", PB_DIAG_JOB},
    {"loop", "not_joined", PB_DIAG_JOB},
    {"blocked_call", "not_joined", PB_DIAG_JOB},
    {"queue_empty", "not_joined", PB_DIAG_JOB},
    {"future_unset", "not_joined", PB_DIAG_JOB},
    {"mismatch", "hang", PB_DIAG_JOB},
    {"not_joined", "hang", PB_DIAG_JOB},
    {"hang", "slow_job", PB_DIAG_JOB},
    {"hang", "slow_rank", PB_DIAG_JOB},
    {"nan", "diverged", PB_DIAG_JOB},
    {"nan", "slow_rank", PB_DIAG_JOB}, /* nobody asks for the speed of a training that is lost */
    {"slow_rank", "slow_job", PB_DIAG_JOB},
    {"leak", "slow_rank", PB_DIAG_SAME_RANK}, /* what grows takes longer to walk, and to page in */
};
const size_t pb_diag_ntable = sizeof(pb_diag_table) / sizeof(pb_diag_table[0]);

/* A cause that is seen much later than its effect cannot be it. */
#define SLACK_S 5.0

static bool explains(const struct pb_diag_finding *cause, const struct pb_diag_finding *effect)
{
    if (cause == effect || cause->sure == PB_DIAG_REMARK)
        return false;
    if (cause->since >= 0 && effect->since >= 0 && cause->since + SLACK_S < effect->since)
        return false;
    for (size_t i = 0; i < pb_diag_ntable; i++) {
        const struct pb_diag_explains *e = &pb_diag_table[i];
        if (strcmp(e->cause, cause->kind) != 0 || strcmp(e->effect, effect->kind) != 0)
            continue;
        if (e->scope != PB_DIAG_SAME_RANK || cause->rank == effect->rank)
            return true;
    }
    return false;
}

static int severity_of(const char *kind)
{
    int i = 0;

    while (i < (int)pb_diag_nkinds && strcmp(pb_diag_kinds[i], kind) != 0)
        i++;
    return i;
}

/* Roots first; of those, what explains most, then what is surer, graver, and began first. */
static int by_weight(const void *a, const void *b)
{
    const struct pb_diag_finding *x = a, *y = b;

    if (x->root != y->root)
        return x->root ? -1 : 1;
    if (x->sure != y->sure && (x->sure == PB_DIAG_REMARK || y->sure == PB_DIAG_REMARK))
        return x->sure > y->sure ? -1 : 1;
    if (x->explains != y->explains)
        return x->explains > y->explains ? -1 : 1;
    if (x->sure != y->sure)
        return x->sure > y->sure ? -1 : 1;
    if (x->severity != y->severity)
        return x->severity < y->severity ? -1 : 1;
    return (x->since < y->since) - (x->since > y->since);
}

/* Whether it explains a rank that the verdict does not. */
static bool adds(const struct pb_diag_finding *f, const struct pb_diag_finding *verdict)
{
    return f->sure != PB_DIAG_REMARK && f->rank >= 0 && f->rank != verdict->rank && f->sure >= verdict->sure;
}

const struct pb_diag_finding *pb_diag_explain(struct pb_diag_findings *findings)
{
    for (size_t i = 0; i < findings->n; i++) {
        findings->at[i].severity = severity_of(findings->at[i].kind);
        findings->at[i].root = findings->at[i].sure != PB_DIAG_REMARK;
        findings->at[i].second = false;
    }
    for (size_t i = 0; i < findings->n; i++)
        for (size_t k = 0; k < findings->n; k++)
            if (explains(&findings->at[k], &findings->at[i]))
                findings->at[i].root = false;
    if (findings->n)
        qsort(findings->at, findings->n, sizeof(*findings->at), by_weight);
    if (!findings->n || !findings->at[0].root)
        return NULL;
    for (size_t i = 1; i < findings->n && findings->at[i].root; i++)
        if (adds(&findings->at[i], &findings->at[0])) {
            findings->at[i].second = true;
            break;
        }
    return &findings->at[0];
}
