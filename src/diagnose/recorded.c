/* recorded: see recorded.h. */
#include "diagnose/recorded.h"

#include "ask/step_lines.h"
#include "ask/targets.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "base/time.h"
#include "diagnose/graph_leak.h"
#include "diagnose/neighbours.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GRAPHS_MS = 10000 }; /* no rank is asked for kept graphs later than that: a job may have hundreds */

/* The processes of the job's ranks that have an agent, then those that have ended. */
static int find_probed(const struct pb_diag_job *job, const struct pb_targets *probed, struct pb_targets *ret,
                       size_t *ret_living)
{
    ret->at = calloc(probed->n + job->nended + 1, sizeof(*ret->at));
    if (!ret->at)
        return -ENOMEM;
    ret->probed = true;
    for (size_t i = 0; i < probed->n; i++)
        for (size_t k = 0; k < job->nprocesses; k++)
            if (job->processes[k].parent == PB_NOBODY && job->processes[k].pid == probed->at[i].pid &&
                !probed->at[i].dead) {
                ret->at[ret->n++] = probed->at[i];
                break;
            }
    *ret_living = ret->n;
    for (size_t i = 0; i < job->nended; i++) {
        const struct pb_diag_ended *e = &job->ended[i];
        if (!e->has_run)
            continue;
        struct pb_target *t = &ret->at[ret->n++];
        *t = (struct pb_target){
            .pid = e->pid, .dead = true, .start_time = e->start_time, .program = e->program};
        if (e->rank >= 0)
            pb_target_set_rank(t, e->rank);
        else
            snprintf(t->label, sizeof(t->label), "pid %d", (int)e->pid);
    }
    /* That ranks have ended is judged without any rows too: then all tables are empty, as ours are. */
    if (job->nended && !ret->n)
        ret->at[ret->n++] = (struct pb_target){.pid = getpid()};
    return 0;
}

int pb_diag_recorded_of(const struct pb_ask *ask, const struct pb_targets *targets, struct pb_targets *ret,
                        struct pb_err *err)
{
    struct pb_diag_jobs jobs = {0};
    struct pb_targets probed = {0};
    size_t living;

    *ret = (struct pb_targets){0};
    int r = pb_diag_jobs_find(ask, targets, &jobs, err);
    if (r == 0 && (r = pb_targets_probed(ask, &probed, err)) == 0 && jobs.n > 1)
        r = pb_fail(err, -EINVAL, "these processes are of %zu jobs: name one", jobs.n);
    if (r == 0 && jobs.n && (r = find_probed(&jobs.at[0], &probed, ret, &living)) < 0)
        pb_fail(err, r, "out of memory");
    pb_targets_done(&probed);
    pb_diag_jobs_done(&jobs);
    return r;
}

/* What a rank left of its end says more than that it is gone. */
static void prefer_recorded(struct pb_diag_findings *findings, size_t first)
{
    size_t n = 0;

    for (size_t i = 0; i < findings->n; i++) {
        bool again = false;
        for (size_t k = first; i < first && k < findings->n; k++)
            again |= strcmp(findings->at[i].kind, "rank_gone") == 0 &&
                     strcmp(findings->at[k].kind, "rank_gone") == 0;
        if (!again)
            findings->at[n++] = findings->at[i];
    }
    findings->n = n;
}

/* "38% of every step is spent waiting for rank 1, " and then why. */
static void set_cause(struct pb_diag_finding *f, const char *cause, const char *because)
{
    char *end = strstr(f->says, ", ");

    snprintf(f->cause, sizeof(f->cause), "%s", cause);
    if (end)
        snprintf(end, sizeof(f->says) - (size_t)(end - f->says), ", %s.", because);
}

static void set_reason(struct pb_diag_finding *f, const char *why)
{
    snprintf(f->why, sizeof(f->why), "%s", why);
}

static void set_next(struct pb_diag_finding *f, const char *next)
{
    snprintf(f->next, sizeof(f->next), "%s", next);
}

static struct pb_diag_evidence *add_evidence(struct pb_diag_finding *f, const char *label)
{
    if (f->nevidence == PB_DIAG_EVIDENCE)
        return NULL;
    struct pb_diag_evidence *e = &f->evidence[f->nevidence++];
    *e = (struct pb_diag_evidence){0};
    snprintf(e->field[0], sizeof(e->field[0]), "%s", label);
    return e;
}

/* What the looks at its line say of the cause. */
static void judge_line(const struct pb_own_code *code, struct pb_diag_finding *f)
{
    bool all = strcmp(f->kind, "slow_job") == 0;

    if (pb_own_code_is_mostly(code, code->storage)) {
        set_cause(f, "storage", all ? "since they wait for their storage" : "which waits for its storage");
        if (all)
            set_next(f,
                     "read and write less often, or in a thread or process that the steps do not wait for.");
    } else if (all && pb_own_code_is_mostly(code, code->locks)) {
        snprintf(f->cause, sizeof(f->cause), "file_lock");
    } else if (strstr(code->source, "gc.collect(")) {
        set_cause(f, "collector", "which collects garbage again and again");
    }
}

/* A rank that is slow in code of its own, or ranks that all are: which line, by some looks at it. */
static void find_own_line(const struct pb_ask *ask, const struct pb_targets *targets,
                          struct pb_diag_finding *f)
{
    struct pb_own_code code = {0};
    struct pb_err ignored;

    enum pb_own_part part = strcmp(f->cause, "data") == 0 ? PB_OWN_DATA : PB_OWN_OUTSIDE;

    if (f->place.line || (part == PB_OWN_OUTSIDE && strcmp(f->cause, "python") != 0))
        return;
    for (size_t i = 0; i < targets->n; i++) {
        if (targets->at[i].pid != f->pid || pb_own_code_ask(ask, &targets->at[i], part, &code, &ignored) < 0)
            continue;
        snprintf(f->place.file, sizeof(f->place.file), "%s", code.file);
        snprintf(f->place.function, sizeof(f->place.function), "%s", code.function);
        f->place.line = code.line;
        snprintf(f->place.source, sizeof(f->place.source), "%s", code.source);
        pb_text_clean(f->place.source);
        judge_line(&code, f);
        struct pb_diag_evidence *e = add_evidence(f, "line");
        if (!e)
            continue;
        const char *slash = strrchr(code.file, '/');
        snprintf(e->field[1], sizeof(e->field[1]), "%s:%d, in %s", slash ? slash + 1 : code.file, code.line,
                 code.function);
        snprintf(e->field[2], sizeof(e->field[2]), "%u of %u looks outside of its modules", code.hits,
                 code.outside);
    }
}

/* Who takes the CPU of a rank that gets too little of it. */
static void name_neighbours(const struct pb_ask *ask, struct pb_diag_finding *f)
{
    char who[256];

    if (strcmp(f->cause, "cpu_neighbour") != 0)
        return;
    pb_diag_neighbours(ask, f->pid, who, sizeof(who));
    struct pb_diag_evidence *e = who[0] ? add_evidence(f, "by") : NULL;
    if (e)
        snprintf(e->field[1], sizeof(e->field[1]), "%s", who);
}

/* Memory that grows and is neither Python's nor a tensor's that a sample met: results that are kept with
 * their graphs are a second witness. */
static void find_graph_leak(const struct pb_ask *ask, const struct pb_targets *targets, uint64_t until,
                            struct pb_diag_finding *f)
{
    struct pb_graph_leak kept;
    struct pb_err ignored;

    if (strcmp(f->kind, "leak") != 0 || f->sure != PB_DIAG_REMARK || pb_now_ns() >= until ||
        (strcmp(f->cause, "tensors") != 0 && strcmp(f->cause, "small") != 0))
        return;
    for (size_t i = 0; i < targets->n; i++) {
        if (targets->at[i].pid != f->pid || targets->at[i].dead ||
            pb_diag_graph_leak(ask, &targets->at[i], &kept, &ignored) < 0)
            continue;
        bool scalar = strcmp(kept.shape, "scalar") == 0;
        f->sure = PB_DIAG_LIKELY;
        snprintf(f->cause, sizeof(f->cause), "graph");
        snprintf(f->place.file, sizeof(f->place.file), "%s", kept.file);
        snprintf(f->place.function, sizeof(f->place.function), "%s", kept.function);
        f->place.line = kept.line;
        set_reason(f, "Likely: memory grew in every quarter of that time, and kept graphs grow with it.");
        set_next(f, scalar ? "keep the number alone: loss.item()."
                           : "keep a copy without the graph: tensor.detach().");
        struct pb_diag_evidence *e = add_evidence(f, "graphs");
        if (e)
            snprintf(e->field[1], sizeof(e->field[1]),
                     "%ld, then %ld %.0f s later: %s results that need a gradient, each with its graph",
                     kept.before, kept.after, kept.seconds, scalar ? "scalar" : kept.shape);
    }
}

/* Looks for what rules cannot see. That all ranks are slow counts only where they wait for the same: whatever
 * they compute between their steps may be what they are there for. Memory that grows by little counts only
 * with a second witness; the rule gives what grows fastest first, and as many are asked as there is time
 * for. */
static void look_further(const struct pb_ask *ask, const struct pb_targets *targets,
                         struct pb_diag_findings *findings, size_t first)
{
    uint64_t until = pb_now_ns() + GRAPHS_MS * PB_NS_PER_MS;
    size_t n = first;

    for (size_t i = first; i < findings->n; i++) {
        struct pb_diag_finding *f = &findings->at[i];
        bool all = strcmp(f->kind, "slow_job") == 0;
        if (all || strcmp(f->kind, "slow_rank") == 0)
            find_own_line(ask, targets, f);
        name_neighbours(ask, f);
        find_graph_leak(ask, targets, until, f);
        if ((!all || strcmp(f->cause, "python") != 0) && strcmp(f->cause, "small") != 0)
            findings->at[n++] = *f;
    }
    findings->n = n;
}

int pb_diag_recorded(const struct pb_ask *ask, const struct pb_diag_rules *rules,
                     const struct pb_targets *probed, struct pb_diag_answer *a, unsigned timeout_ms,
                     struct pb_err *err)
{
    struct pb_targets targets = {0};
    struct pb_diag_rules recorded = {0};
    size_t before = a->findings.n, living = 0;

    int r = pb_diag_rules_part(rules, true, &recorded);
    if (r == 0)
        r = find_probed(a->job, probed, &targets, &living);
    a->probed = (int)living;
    if (r < 0)
        pb_fail(err, r, "out of memory");
    else if (targets.n && recorded.n &&
             pb_diag_rules_run(ask, &recorded, a->job, &targets, timeout_ms, &a->findings, err) < 0)
        /* What the looks have shown stands without it. */
        pb_ask_note(ask, "what the ranks recorded could not be judged: %s", err->text);
    if (r >= 0)
        look_further(ask, &targets, &a->findings, before);
    if (r >= 0)
        prefer_recorded(&a->findings, before);
    free(recorded.at);
    free(targets.at);
    return r < 0 ? r : 0;
}
