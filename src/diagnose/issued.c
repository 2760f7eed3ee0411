/* issued: see issued.h.
 *
 * The recorder knows what stacks do not: calls that return at once, as all of NCCL's do and those with
 * async_op=True. The stack of such a rank shows the line that waits for the result, or a loop that asks for
 * it. */
#include "diagnose/issued.h"

#include "ask/stacks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double NOTICED_S = 0.5; /* what stands for less is an ordinary collective */
static const double PROVED_S = 5;

const char *pb_diag_stall_name(enum pb_stall_kind kind)
{
    static const char *const names[] = {
        [PB_STALL_NONE] = "none",           [PB_STALL_NOT_JOINED] = "not_joined",
        [PB_STALL_OPERATION] = "operation", [PB_STALL_SIZE] = "size",
        [PB_STALL_TYPE] = "dtype",          [PB_STALL_ALL_IN] = "all_in",
    };
    return names[kind];
}

static size_t main_of(const struct pb_diag_job *job, pid_t pid)
{
    for (size_t i = 0; i < job->nprocesses; i++)
        if (job->processes[i].pid == pid && job->processes[i].parent == PB_NOBODY && job->processes[i].n)
            return job->processes[i].first;
    return PB_NOBODY;
}

static bool is_hidden(const struct pb_diag_job *job, const struct pb_collective_rank *ranks, size_t n,
                      const unsigned char *roles)
{
    bool any = false;

    for (size_t i = 0; i < n; i++) {
        size_t main = main_of(job, ranks[i].pid);
        any |= roles[i] == PB_STALL_WAITS && main != PB_NOBODY && job->threads[main].same &&
               job->threads[main].wait.kind != PB_WAIT_COLLECTIVE;
    }
    return any;
}

/* A thread that stands at one place while its rank waits waits for that. */
static void add_waits(struct pb_diag_job *job, const struct pb_collective_rank *ranks, size_t n,
                      const unsigned char *roles)
{
    /* One name for all: that of a frame is not the recorder's. */
    for (size_t i = 0; i < n; i++) {
        size_t main = main_of(job, ranks[i].pid);
        struct pb_diag_thread *t = main == PB_NOBODY ? NULL : &job->threads[main];
        if (roles[i] != PB_STALL_WAITS || !t || !t->same || t->held[0])
            continue;
        t->wait.kind = PB_WAIT_COLLECTIVE;
        snprintf(t->wait.text, sizeof(t->wait.text), "%s", job->stall.op);
        t->wait.group[0] = '\0';
        t->moved = false; /* it may look for the end again and again */
        t->still = t->still > job->stall.seconds ? t->still : job->stall.seconds;
    }
}

int pb_diag_issued(struct pb_diag_job *job)
{
    struct pb_collective_rank *ranks = calloc(job->nanswers + 1, sizeof(*ranks));
    unsigned char *roles = calloc(job->nanswers + 1, 1);
    size_t n = 0;

    for (size_t i = 0; ranks && roles && i < job->nanswers; i++) {
        const struct pb_stacks *s = job->answers[i].result == 0 ? job->answers[i].stacks : NULL;
        if (s && s->collectives && main_of(job, s->pid) != PB_NOBODY)
            ranks[n++] = *s->collectives;
    }
    if (n > 1 && pb_collectives_judge(ranks, n, NOTICED_S, &job->stall, roles)) {
        job->stall_hidden = is_hidden(job, ranks, n, roles);
        if (job->stall_hidden && job->stall.kind == PB_STALL_NOT_JOINED && job->stall.seconds >= PROVED_S)
            add_waits(job, ranks, n, roles);
    } else {
        job->stall.kind = PB_STALL_NONE;
    }
    int r = ranks && roles ? 0 : -ENOMEM;
    free(ranks);
    free(roles);
    return r;
}

/* --- findings --- */

static bool is_of_recorder(const struct pb_diag_finding *f)
{
    return f->nevidence && strcmp(f->evidence[0].field[0], "issued") == 0;
}

static bool is_of_ranks(const struct pb_diag_finding *f)
{
    return f->explains > 0 && f->sure != PB_DIAG_REMARK && strcmp(f->kind, "leak") != 0;
}

static void add_line(struct pb_diag_finding *f, const struct pb_stall *s)
{
    if (f->nevidence == PB_DIAG_EVIDENCE)
        return;
    struct pb_diag_evidence *e = &f->evidence[f->nevidence++];
    *e = (struct pb_diag_evidence){0};
    snprintf(e->field[0], sizeof(e->field[0]), "issued");
    const char *many = strpbrk(s->waiting, ",-.") ? "s" : "", *others = strpbrk(s->others, ",-.") ? "s" : "";
    int len = snprintf(e->field[1], sizeof(e->field[1]), "rank%s %s", many, s->waiting);
    if (s->kind == PB_STALL_NOT_JOINED)
        snprintf(e->field[1] + len, sizeof(e->field[1]) - (size_t)len, ", not rank%s %s", others, s->others);
    snprintf(e->field[2], sizeof(e->field[2]), "%s %llu of group %s", s->op, (unsigned long long)s->number,
             s->group);
    if (s->difference[0])
        snprintf(e->field[3], sizeof(e->field[3]), "rank%s %s: %.200s", others, s->others, s->difference);
}

void pb_diag_issued_merge(const struct pb_diag_job *job, struct pb_diag_findings *findings)
{
    const struct pb_stall *s = &job->stall;
    bool any = false;
    size_t n = 0;

    if (s->kind == PB_STALL_NONE || s->seconds < PROVED_S)
        return;
    for (size_t i = 0; i < findings->n; i++) {
        struct pb_diag_finding *f = &findings->at[i];
        if (is_of_recorder(f) || !is_of_ranks(f))
            continue;
        any = true;
        add_line(f, s);
    }
    for (size_t i = 0; i < findings->n; i++)
        if (!any || !is_of_recorder(&findings->at[i]))
            findings->at[n++] = findings->at[i];
    findings->n = n;
}
