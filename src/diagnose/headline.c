/* headline: see headline.h. */
#include "diagnose/headline.h"

#include "base/err.h"
#include "diagnose/diagnose.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who waits for a command that shows something else does not wait for long. */
enum { LIMIT_MS = 4000 };

void pb_headlines_done(struct pb_headlines *h)
{
    free(h->at);
    free(h->jobs);
    *h = (struct pb_headlines){0};
}

const struct pb_headline *pb_headline_of(const struct pb_headlines *h, pid_t pid)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->at[i].pid == pid)
            return &h->at[i];
    return NULL;
}

/* Keeps the first finding of each process: the verdict comes first. NULL: out of memory, or
 * *taken. */
static struct pb_headline *add(struct pb_headlines *h, pid_t pid, const struct pb_diag_finding *f,
                               bool *taken)
{
    *taken = pb_headline_of(h, pid) != NULL;
    struct pb_headline *more = *taken ? NULL : reallocarray(h->at, h->n + 1, sizeof(*more));
    if (!more)
        return NULL;
    h->at = more;
    more[h->n] = (struct pb_headline){.pid = pid};
    snprintf(more[h->n].kind, sizeof(more[h->n].kind), "%s", f->kind);
    return &more[h->n++];
}

static int add_cause(struct pb_headlines *h, pid_t pid, const struct pb_diag_finding *f)
{
    bool taken;
    struct pb_headline *line = add(h, pid, f, &taken);

    if (!line)
        return taken ? 0 : -ENOMEM;
    line->cause = true;
    snprintf(line->text, sizeof(line->text), "%s", f->says);
    return 0;
}

/* Whom it is about: a rank with its children; of no rank: all ranks of the job. */
static bool is_about(const struct pb_diag_process *p, const struct pb_diag_finding *f)
{
    if (f->rank < 0 && f->pid <= 0)
        return p->parent == PB_NOBODY;
    return f->pid > 0 ? p->pid == f->pid || (f->rank >= 0 && p->rank == f->rank && p->parent == PB_NOBODY)
                      : p->rank == f->rank && p->parent == PB_NOBODY;
}

static int add_waiting(struct pb_headlines *h, const struct pb_diag_job *job, const struct pb_diag_finding *f)
{
    for (size_t i = 0; i < job->nends; i++) {
        const struct pb_diag_end *e = &job->ends[i];
        if (!is_about(&job->processes[e->process], f))
            continue;
        for (size_t k = 0; k < e->nblocked; k++) {
            bool taken;
            const struct pb_diag_process *p = &job->processes[job->threads[e->blocked[k]].process];
            struct pb_headline *line = add(h, p->pid, f, &taken);
            if (!line && !taken)
                return -ENOMEM;
            if (line && f->rank >= 0)
                snprintf(line->text, sizeof(line->text), "It waits for rank %d, which holds up the job.",
                         f->rank);
            else if (line)
                snprintf(line->text, sizeof(line->text), "It waits for process %d, which holds up the job.",
                         (int)f->pid);
        }
    }
    return 0;
}

/* What our own prompts hold is no fault, but nobody should take it for one. */
static bool is_shown(const struct pb_diag_finding *f)
{
    return f->sure == PB_DIAG_REMARK ? strcmp(f->kind, "held") == 0 : f->root;
}

static int add_job(struct pb_headlines *h, const struct pb_diag_answer *a)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < a->findings.n; i++)
        for (size_t k = 0; r == 0 && is_shown(&a->findings.at[i]) && k < a->job->nprocesses; k++)
            if (is_about(&a->job->processes[k], &a->findings.at[i]))
                r = add_cause(h, a->job->processes[k].pid, &a->findings.at[i]);
    for (size_t i = 0; r == 0 && i < a->findings.n; i++)
        if (is_shown(&a->findings.at[i]) && (a->findings.at[i].rank >= 0 || a->findings.at[i].pid > 0))
            r = add_waiting(h, a->job, &a->findings.at[i]);
    return r;
}

static int make_headlines(const struct pb_diagnosis *d, struct pb_headlines *ret)
{
    struct pb_headlines h = {0};
    int r = 0;

    h.jobs = calloc(d->n + 1, sizeof(*h.jobs));
    if (!h.jobs)
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        r = add_job(&h, &d->at[i]);
        if (d->at[i].verdict)
            snprintf(h.jobs[h.njobs++], sizeof(*h.jobs), "%s", d->at[i].verdict->says);
    }
    if (r < 0) {
        pb_headlines_done(&h);
        return r;
    }
    *ret = h;
    return 0;
}

int pb_headlines_ask(const struct pb_ask *ask, const struct pb_targets *targets, bool recorded,
                     struct pb_headlines *ret, struct pb_err *err)
{
    const struct pb_diag_request request = {.targets = targets, .recorded = recorded, .limit_ms = LIMIT_MS};
    struct pb_diagnosis d;

    int r = pb_diagnose(ask, &request, &d, err);
    if (r < 0)
        return r;
    r = make_headlines(&d, ret);
    pb_diagnosis_done(&d);
    return r < 0 ? pb_fail(err, r, "out of memory") : 0;
}
