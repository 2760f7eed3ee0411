/* standing: see standing.h. */
#include "diagnose/standing.h"

#include "base/time.h"

#include <stdio.h>
#include <string.h>

enum { OVER_AFTER = 2 };

static pid_t pid_of(const struct pb_diag_job *job)
{
    return job->launcher > 1 ? job->launcher : job->nprocesses ? job->processes[0].pid : 0;
}

static struct pb_diag_stands *find(struct pb_diag_standing *s, const struct pb_diag_answer *a,
                                   const struct pb_diag_finding *f)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].job_pid == pid_of(a->job) && s->at[i].rank == f->rank &&
            strcmp(s->at[i].kind, f->kind) == 0)
            return &s->at[i];
    return NULL;
}

static struct pb_diag_stands *add(struct pb_diag_standing *s, const struct pb_diag_answer *a,
                                  const struct pb_diag_finding *f)
{
    if (s->n == PB_DIAG_STANDING)
        return NULL;
    struct pb_diag_stands *at = &s->at[s->n++];
    *at = (struct pb_diag_stands){
        .job_pid = pid_of(a->job), .rank = f->rank, .pid = f->pid, .sure = f->sure, .began = pb_now_ns()};
    snprintf(at->job, sizeof(at->job), "%s", a->job->name);
    snprintf(at->kind, sizeof(at->kind), "%s", f->kind);
    snprintf(at->says, sizeof(at->says), "%s", f->says);
    return at;
}

static double seconds_of(const struct pb_diag_stands *at)
{
    return (double)(pb_now_ns() - at->began) / 1e9;
}

void pb_diag_standing_take(struct pb_diag_standing *s, const struct pb_diagnosis *d,
                           void (*each)(void *arg, const struct pb_diag_event *e), void *arg)
{
    for (size_t i = 0; i < s->n; i++)
        s->at[i].seen = false;
    for (size_t i = 0; i < d->n; i++)
        for (size_t k = 0; d->at[i].verdict && k < d->at[i].findings.n; k++) {
            const struct pb_diag_finding *f = &d->at[i].findings.at[k];
            if (k && !f->second)
                continue;
            struct pb_diag_stands *known = find(s, &d->at[i], f), *at = known ? known : add(s, &d->at[i], f);
            if (!at)
                continue;
            at->seen = true;
            at->missed = 0;
            if (!known)
                each(arg, &(struct pb_diag_event){.what = at, .answer = &d->at[i], .finding = f});
        }
    for (size_t i = 0; i < s->n;) {
        struct pb_diag_stands *at = &s->at[i];
        if (at->seen || ++at->missed < OVER_AFTER) {
            i++;
            continue;
        }
        each(arg, &(struct pb_diag_event){.what = at, .over = true, .seconds = seconds_of(at)});
        s->at[i] = s->at[--s->n];
    }
}
