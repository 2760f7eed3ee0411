/* diagnose: see diagnose.h. */
#include "diagnose/diagnose.h"

#include "ask/ask.h"
#include "ask/targets.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "diagnose/ended.h"
#include "diagnose/facts_wire.h"
#include "diagnose/headline.h"
#include "diagnose/issued.h"
#include "diagnose/look.h"
#include "diagnose/recorded.h"
#include "diagnose/since.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RULES_MS = 15000, /* normally some hundredths of that, but the machine may have no CPU for it */
    ENDED_MS = 3000,
    PATIENCE_MS = PB_DIAG_PATIENCE_S * 1000,
    PATIENT_MIN_MS = 500,
    MOST_OVER = 3, /* jobs that are over, where none is named */
    MOST_NAMED = 64,
};

void pb_diagnosis_done(struct pb_diagnosis *d)
{
    for (size_t i = 0; i < d->n; i++)
        free(d->at[i].findings.at);
    free(d->at);
    pb_diag_jobs_done(&d->jobs);
    *d = (struct pb_diagnosis){0};
}

/* Some rank of a job ends while it is looked at: what it leaves says more than the looks. */
static bool is_ending(const struct pb_diag_job *job)
{
    for (size_t i = 0; i < job->nprocesses; i++) {
        const struct pb_diag_process *p = &job->processes[i];
        if (p->parent == PB_NOBODY && ((!p->newborn && p->result == -ESRCH) || pb_diag_is_finalizing(job, p)))
            return true;
    }
    return false;
}

/* A wait that proves nothing by itself counts only after PATIENCE_MS. Returns the ms still missing; 0: no
 * such wait, or the waiting threads move. */
static unsigned left_to_wait(const struct pb_diag_job *job)
{
    unsigned left = is_ending(job) ? PATIENCE_MS : 0;
    /* Ranks in one another's way by their recorders: proved only later. */
    bool stands = job->stall.kind != PB_STALL_NONE && job->stall.kind != PB_STALL_ALL_IN && job->stall_hidden;

    if (stands && job->stall.seconds * 1e3 < PATIENCE_MS)
        left = PATIENCE_MS - (unsigned)(job->stall.seconds * 1e3);

    for (size_t i = 0; i < job->nends && !job->over; i++) {
        const struct pb_diag_end *e = &job->ends[i];
        /* Those of a job that ends go one after the other. */
        if (e->kind == PB_END_DEAD && job->processes[e->process].state == 'X')
            return PATIENCE_MS;
        const struct pb_diag_thread *own = e->thread == PB_NOBODY ? NULL : &job->threads[e->thread];
        bool in_loop =
            e->kind == PB_END_BLOCKED && own && (own->in_event_loop || own->cut_off) && !own->moved;
        bool takes_time = e->kind == PB_END_RUNS || e->kind == PB_END_BLOCKED || e->kind == PB_END_TOGETHER ||
                          e->kind == PB_END_GIL;
        if (!takes_time || e->moved || (!e->nblocked && !in_loop))
            continue;
        double least = in_loop ? own->still * 1e3 : PATIENCE_MS;
        for (size_t k = 0; k < e->nblocked; k++)
            if (job->threads[e->blocked[k]].still * 1e3 < least)
                least = job->threads[e->blocked[k]].still * 1e3;
        if (least >= 0 && least < PATIENCE_MS && PATIENCE_MS - (unsigned)least > left)
            left = PATIENCE_MS - (unsigned)least;
    }
    return left;
}

static void count_answers(struct pb_diag_answer *a)
{
    for (size_t i = 0; i < a->job->nprocesses; i++) {
        const struct pb_diag_process *p = &a->job->processes[i];
        if (p->parent != PB_NOBODY || p->state == 'Z' || p->state == 'X')
            continue;
        a->asked++;
        a->answered += p->n > 0;
    }
}

/* Whether a rule of ours can find anything in the looks at a job: starting the worker that runs them takes
 * longer than all else, and a machine may have many processes for which nobody waits. */
static bool may_find(const struct pb_diag_job *job, const struct pb_diag_rules *rules)
{
    for (size_t i = 0; i < rules->n; i++)
        if (rules->at[i].own)
            return true;
    for (size_t i = 0; i < job->nends; i++) {
        const struct pb_diag_end *e = &job->ends[i];
        const struct pb_diag_thread *t = e->thread == PB_NOBODY ? NULL : &job->threads[e->thread];
        if ((e->kind != PB_END_RUNS && e->kind != PB_END_BLOCKED) || e->nblocked || !t || t->in_event_loop ||
            t->cut_off)
            return true;
    }
    return job->nended > 0 || job->world > 1;
}

/* probed NULL: what was recorded does not count. */
static int judge(const struct pb_ask *ask, const struct pb_diag_rules *rules, const struct pb_targets *probed,
                 unsigned limit_ms, struct pb_diag_answer *a, struct pb_err *err)
{
    const struct pb_targets none = {0};
    struct pb_diag_rules looked = {0};

    free(a->findings.at);
    a->findings = (struct pb_diag_findings){0};
    a->verdict = NULL;
    int r = pb_diag_rules_part(rules, false, &looked);
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    if (may_find(a->job, &looked))
        r = pb_diag_rules_run(ask, &looked, a->job, &none, limit_ms, &a->findings, err);
    free(looked.at);
    if (r >= 0)
        pb_diag_issued_merge(a->job, &a->findings);
    if (r >= 0 && probed)
        r = pb_diag_recorded(ask, rules, probed, a, limit_ms, err);
    if (r >= 0)
        a->verdict = pb_diag_explain(&a->findings);
    return r;
}

/* All its processes have ended while they were looked at, or before, and nobody asked about them. */
static bool has_ended(const struct pb_diag_job *job, bool named)
{
    if (job->over)
        return !named;
    for (size_t i = 0; i < job->nprocesses; i++)
        if (job->processes[i].result != -ESRCH)
            return false;
    return true;
}

static void leave_out_ended(struct pb_diagnosis *d, bool named)
{
    size_t n = 0;

    for (size_t i = 0; i < d->n; i++)
        if (d->at[i].verdict || !has_ended(d->at[i].job, named))
            d->at[n++] = d->at[i];
        else
            free(d->at[i].findings.at);
    d->n = n;
}

static int graver_first(const void *a, const void *b)
{
    const struct pb_diag_answer *x = a, *y = b;

    if (!x->verdict != !y->verdict)
        return x->verdict ? -1 : 1;
    if (x->job->nprocesses != y->job->nprocesses)
        return x->job->nprocesses > y->job->nprocesses ? -1 : 1;
    return strcmp(x->job->name, y->job->name);
}

/* Those that have ended come last, and where nobody has named them, only for some seconds. */
static int judge_all(const struct pb_ask *ask, const struct pb_diag_rules *rules,
                     const struct pb_diag_request *request, struct pb_diagnosis *d, struct pb_err *err)
{
    _cleanup_(pb_targets_done) struct pb_targets probed = {0};
    uint64_t from = pb_now_ns(), ended_ns = ENDED_MS * PB_NS_PER_MS,
             limit_ns = request->limit_ms * PB_NS_PER_MS;
    unsigned nleft = 0;

    int r = request->recorded ? pb_targets_probed(ask, &probed, err) : 0;
    for (size_t k = 0; r >= 0 && k < 2 * d->n; k++) {
        struct pb_diag_answer *a = &d->at[k % d->n];
        bool last = k >= d->n;
        uint64_t took = pb_now_ns() - from;
        if (a->job->over != last)
            continue;
        if ((limit_ns && took >= limit_ns) || (last && !request->targets->n && took >= ended_ns)) {
            nleft += last;
            continue;
        }
        uint64_t left_ms = limit_ns ? (limit_ns - took) / PB_NS_PER_MS + 1 : RULES_MS;
        r = judge(ask, rules, request->recorded ? &probed : NULL,
                  left_ms < RULES_MS ? (unsigned)left_ms : RULES_MS, a, err);
        if (r == -ETIMEDOUT && limit_ns)
            r = 0;
    }
    if (nleft && !limit_ns)
        pb_ask_note(ask,
                    "%u jobs that have ended were not looked at, for it would take too long (-t PID@START)",
                    nleft);
    return r;
}

/* Looks at the jobs that have no threads yet, and judges them. */
static int look_and_judge(const struct pb_ask *ask, const struct pb_diag_rules *rules,
                          const struct pb_diag_request *request, struct pb_diagnosis *d, unsigned between_ms,
                          struct pb_err *err)
{
    int r = pb_diag_look(ask, &d->jobs, &(struct pb_look_options){.between_ms = between_ms}, err);

    for (size_t i = 0; r == 0 && i < d->n; i++)
        if ((r = pb_diag_issued(d->at[i].job)) < 0 || (r = pb_diag_follow(d->at[i].job)) < 0)
            pb_fail(err, r, "out of memory");
    for (size_t i = 0; r == 0 && i < d->n; i++)
        if ((r = pb_diag_ended_complete(ask, d->at[i].job)) < 0)
            pb_fail(err, r, "out of memory");
    return r < 0 ? r : judge_all(ask, rules, request, d, err);
}

/* Finds the jobs, which are not judged yet. */
static int find_jobs(const struct pb_ask *ask, const struct pb_diag_request *request, struct pb_diagnosis *d,
                     struct pb_err *err)
{
    pb_diagnosis_done(d);
    int r = pb_diag_jobs_find(ask, request->targets, &d->jobs, err);
    if (r < 0)
        return r;
    d->at = calloc(d->jobs.n + 1, sizeof(*d->at));
    if (!d->at)
        return pb_fail(err, -ENOMEM, "out of memory");
    /* Jobs that are over come last, the newest first. A short list is of what is there. */
    int over = 0, most = request->targets->n ? MOST_NAMED : request->patient ? MOST_OVER : 0;
    for (size_t i = 0; i < d->jobs.n; i++)
        if (!d->jobs.at[i].over || over++ < most)
            d->at[d->n++].job = &d->jobs.at[i];
    return 0;
}

int pb_diagnose(const struct pb_ask *ask, const struct pb_diag_request *request, struct pb_diagnosis *ret,
                struct pb_err *err)
{
    _cleanup_(pb_diag_rules_done) struct pb_diag_rules rules = {0};
    struct pb_diagnosis d = {0};
    uint64_t from = pb_now_ns();

    int r = pb_diag_rules_read(ask, request->rules, &rules, err);
    if (r == 0 && request->since > 0 && (r = pb_diag_rules_since(&rules, request->since)) < 0)
        pb_fail(err, r, "out of memory");
    if (r == 0)
        r = find_jobs(ask, request, &d, err);
    if (r == 0)
        r = look_and_judge(ask, &rules, request, &d, 0, err);
    unsigned left = 0;
    for (size_t i = 0; r >= 0 && i < d.n; i++)
        if (!d.at[i].verdict && left_to_wait(d.at[i].job) > left)
            left = left_to_wait(d.at[i].job);
    if (r >= 0 && left && request->patient) {
        /* Ranks may have ended meanwhile. */
        unsigned pause_ms = left > PATIENT_MIN_MS ? left : PATIENT_MIN_MS, first_ms = 0;
        for (size_t i = 0; i < d.n; i++)
            if (is_ending(d.at[i].job))
                first_ms = pause_ms;
        pb_sleep_ns(first_ms * PB_NS_PER_MS);
        r = find_jobs(ask, request, &d, err);
        for (size_t i = 0; r == 0 && i < d.n; i++)
            d.at[i].job->looked_again = true;
        if (r == 0)
            r = look_and_judge(ask, &rules, request, &d, first_ms ? 0 : pause_ms, err);
    }
    if (r < 0) {
        pb_diagnosis_done(&d);
        return r;
    }
    leave_out_ended(&d, request->targets->n > 0);
    for (size_t i = 0; i < d.n; i++)
        count_answers(&d.at[i]);
    if (d.n)
        qsort(d.at, d.n, sizeof(*d.at), graver_first);
    d.seconds = (double)(pb_now_ns() - from) / 1e9;
    *ret = d;
    return 0;
}

/* --- a job on several nodes --- */

int pb_diagnose_part(const struct pb_ask *ask, const struct pb_diag_request *request, FILE *out,
                     struct pb_err *err)
{
    _cleanup_(pb_diag_rules_done) struct pb_diag_rules rules = {0};
    _cleanup_(pb_targets_done) struct pb_targets probed = {0};
    _cleanup_(pb_diagnosis_done) struct pb_diagnosis d = {0};

    int r = pb_diag_rules_read(ask, NULL, &rules, err);
    if (r == 0 && request->since > 0 && (r = pb_diag_rules_since(&rules, request->since)) < 0)
        pb_fail(err, r, "out of memory");
    if (r == 0)
        r = find_jobs(ask, request, &d, err);
    if (r == 0 && !d.n)
        r = pb_fail(err, -ESRCH, "the target is no process of a job that can be read here");
    if (r == 0)
        r = pb_diag_look(ask, &d.jobs, &(struct pb_look_options){0}, err);
    if (r == 0 &&
        ((r = pb_diag_follow(d.at[0].job)) < 0 || (r = pb_diag_ended_complete(ask, d.at[0].job)) < 0))
        pb_fail(err, r, "out of memory");
    if (r >= 0 && request->recorded && (r = pb_targets_probed(ask, &probed, err)) >= 0)
        r = pb_diag_recorded(ask, &rules, &probed, &d.at[0], RULES_MS, err);
    if (r >= 0)
        pb_diag_facts_write(out, &d.at[0]);
    return r < 0 ? r : 0;
}

/* A pid says nothing without its node. */
static void name_nodes(struct pb_diag_answer *a)
{
    for (size_t i = 0; i < a->findings.n; i++) {
        struct pb_diag_finding *f = &a->findings.at[i];
        for (size_t k = 0; k < a->job->nprocesses && f->rank >= 0 && f->nevidence < PB_DIAG_EVIDENCE; k++) {
            const struct pb_diag_process *p = &a->job->processes[k];
            if (p->rank != f->rank || p->parent != PB_NOBODY)
                continue;
            struct pb_diag_evidence *e = &f->evidence[f->nevidence++];
            *e = (struct pb_diag_evidence){{"node"}};
            snprintf(e->field[1], sizeof(e->field[1]), "rank %d", p->rank);
            snprintf(e->field[2], sizeof(e->field[2]), "%s, pid %d there", p->node, (int)p->pid);
            break;
        }
    }
}

int pb_diagnose_joined(const struct pb_ask *ask, const char *folder, struct pb_diag_answer *a,
                       unsigned *ret_left_ms, struct pb_err *err)
{
    _cleanup_(pb_diag_rules_done) struct pb_diag_rules rules = {0};
    struct pb_diag_rules looked = {0};
    const struct pb_targets none = {0};
    size_t recorded = a->findings.n;

    int r = pb_diag_rules_read(ask, folder, &rules, err);
    if (r == 0 && ((r = pb_diag_follow(a->job)) < 0 || (r = pb_diag_rules_part(&rules, false, &looked)) < 0))
        pb_fail(err, r, "out of memory");
    if (r == 0)
        r = pb_diag_rules_run(ask, &looked, a->job, &none, RULES_MS, &a->findings, err);
    free(looked.at);
    if (r < 0)
        return r;
    /* What a rank recorded of its end says more than that it is gone. */
    for (size_t i = 0; i < recorded; i++)
        for (size_t k = recorded; k < a->findings.n && strcmp(a->findings.at[i].kind, "rank_gone") == 0; k++)
            if (strcmp(a->findings.at[k].kind, "rank_gone") == 0)
                a->findings.at[k].sure = PB_DIAG_REMARK;
    name_nodes(a);
    a->verdict = pb_diag_explain(&a->findings);
    count_answers(a);
    *ret_left_ms = a->verdict ? 0 : left_to_wait(a->job);
    return 0;
}
