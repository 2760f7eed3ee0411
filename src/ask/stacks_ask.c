/* stacks_ask: the stacks of several processes, each taken in a child; see stacks.h.
 *
 * The child copies the result into the memory shared with the caller: texts, frames, threads; not the
 * readers, which end with the child. */
#include "ask/collectives.h"
#include "ask/stacks.h"
#include "ask/task.h"
#include "remote/core.h"
#include "remote/ras.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LIVE_LIMIT_MS = 15000,
    CORE_LIMIT_MS = 180000,
    ROOM = 256 << 20, /* larger than the limits of stacks_take.c and stacks_native.c */
};

struct question {
    const struct pb_target *target;
    struct pb_stacks_options options;
    enum pb_waits_depth depth;
    bool several; /* ranks are compared */
};

struct copying {
    struct pb_room *room;
    bool full;
    const struct pb_py_code **codes; /* the copy of each, by number; NULL: not copied yet */
    size_t ncodes;
};

static void *copy_array(struct copying *c, const void *from, size_t n, size_t size)
{
    void *to = n && from && n <= SIZE_MAX / size ? pb_room_copy(c->room, from, n * size) : NULL;

    c->full |= n && from && !to;
    return to;
}

static const char *copy_text(struct copying *c, const char *text)
{
    return text ? copy_array(c, text, strlen(text) + 1, 1) : NULL;
}

/* Thousands of threads may be in the same functions: each code object is copied once. */
static const struct pb_py_code *copy_code(struct copying *c, const struct pb_py_code *code)
{
    if (code->id >= c->ncodes) {
        size_t n = 2 * (size_t)code->id + 64;
        const struct pb_py_code **more = reallocarray(c->codes, n, sizeof(struct pb_py_code *));
        if (!more) {
            c->full = true;
            return NULL;
        }
        for (size_t i = c->ncodes; i < n; i++)
            more[i] = NULL;
        c->codes = more;
        c->ncodes = n;
    }
    if (!c->codes[code->id]) {
        struct pb_py_code *to = copy_array(c, code, 1, sizeof(*code));
        if (!to)
            return NULL;
        to->name = copy_text(c, code->name);
        to->qualname = code->qualname == code->name ? to->name : copy_text(c, code->qualname);
        to->file = copy_text(c, code->file);
        c->codes[code->id] = to;
    }
    return c->codes[code->id];
}

static struct pb_shown_frame *copy_frames(struct copying *c, const struct pb_shown_frame *frames, size_t n)
{
    struct pb_shown_frame *to = copy_array(c, frames, n, sizeof(*to));

    for (size_t i = 0; to && i < n && !c->full; i++) {
        to[i].code = to[i].at.code = copy_code(c, frames[i].code);
        if (frames[i].locals)
            to[i].locals = copy_array(c, frames[i].locals, frames[i].locals->size, 1);
    }
    return to;
}

static void copy_thread(struct copying *c, const struct pb_shown_thread *from, struct pb_shown_thread *to)
{
    to->frames = copy_frames(c, from->frames, from->nframes);
    to->tasks = copy_array(c, from->tasks, from->ntasks, sizeof(*to->tasks));
    for (size_t i = 0; to->tasks && i < from->ntasks; i++)
        to->tasks[i].frames = copy_frames(c, from->tasks[i].frames, from->tasks[i].nframes);
    to->pcs = NULL;
    to->npcs = 0;
    to->natives = copy_array(c, from->natives, from->nnatives, sizeof(*to->natives));
    for (size_t i = 0; to->natives && i < from->nnatives && !c->full; i++) {
        struct pb_native_frame *f = &to->natives[i];
        f->module = copy_text(c, f->module);
        f->build_id = copy_text(c, f->build_id);
        f->function = copy_text(c, f->function);
        f->file = copy_text(c, f->file);
    }
    to->merged = copy_array(c, from->merged, from->nmerged, sizeof(*to->merged));
}

/* NULL: it does not fit. */
static struct pb_stacks *copy_stacks(struct pb_room *room, const struct pb_stacks *s)
{
    struct copying c = {.room = room};
    struct pb_stacks *to = copy_array(&c, s, 1, sizeof(*s));

    if (to) {
        to->source = (struct pb_source){.pid = s->source.pid, .main = s->source.main, .fd = -1};
        to->py = NULL;
        to->native = NULL;
        to->capture = (struct pb_capture){0};
        to->about.core = copy_array(&c, s->about.core, 1, sizeof(*s->about.core));
        to->threads = copy_array(&c, s->threads, s->n, sizeof(*s->threads));
        to->waits.at = copy_array(&c, s->waits.at, s->waits.n, sizeof(*s->waits.at));
        for (size_t i = 0; to->waits.at && i < s->waits.n && !c.full; i++)
            to->waits.at[i].group_ranks =
                copy_array(&c, s->waits.at[i].group_ranks, s->waits.at[i].ngroup_ranks,
                           sizeof(*s->waits.at[i].group_ranks));
        for (size_t i = 0; to->threads && i < s->n && !c.full; i++)
            copy_thread(&c, &s->threads[i], &to->threads[i]);
    }
    free(c.codes);
    return c.full ? NULL : to;
}

/* A group counts as standing after so long: the longest collectives of a sound job take less. */
#define STANDS_S     1.0
#define RAS_MS       1700 /* a rank that is stopped is waited for a while at first */
#define RAS_APART_US 300000

/* What NCCL's own service says of the ranks that were not asked: two answers, since ranks of a job that
 * runs are at different numbers too. */
static void ask_ras(struct pb_stacks *s)
{
    struct pb_ras first, second;
    char text[300];
    size_t len = strlen(s->verdict);

    if (pb_ras_ask(s->pid, RAS_MS, &first, NULL) < 0)
        return;
    usleep(RAS_APART_US);
    if (pb_ras_ask(s->pid, RAS_MS, &second, NULL) == 0) {
        if (pb_ras_judge(&first, &second, text, sizeof(text)))
            snprintf(s->verdict + len, sizeof(s->verdict) - len, "; NCCL: %s", text);
        pb_ras_done(&second);
    }
    pb_ras_done(&first);
}

/* One rank alone: what it waits for. */
static void add_own(struct pb_stacks *s, const struct pb_collective_rank *rank)
{
    size_t len = strlen(s->verdict);
    struct pb_stall stall;

    if (!pb_collectives_own(rank, STANDS_S, &stall) || !stall.gpu)
        return; /* of others the main thread's stack says it */
    snprintf(s->verdict + len, sizeof(s->verdict) - len, "%s%s", len ? "; " : "", stall.text);
    ask_ras(s);
}

/* Where it stands in its process groups. */
static void take_collectives(struct copying *c, struct pb_stacks *s, bool several)
{
    struct pb_collective_rank rank = {.rank = s->rank, .pid = s->pid};

    if (rank.rank >= 0 && pb_collectives_take(&s->source, &rank) == 0) {
        struct pb_collective_rank *to = several ? copy_array(c, &rank, 1, sizeof(rank)) : NULL;
        if (to)
            to->groups = copy_array(c, rank.groups, rank.ngroups, sizeof(*rank.groups));
        s->collectives = to && to->groups ? to : NULL;
        if (!several)
            add_own(s, &rank);
    }
    pb_collectives_done(&rank, 1);
}

static int take_process(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct question *q = arg;
    struct pb_stacks s;

    int r = pb_stacks_open(ask, q->target, &q->options, &s, err);
    if (r < 0)
        return r;
    r = pb_stacks_take(&s, &q->options, err);
    if (r == 0 && q->depth != PB_WAITS_NONE)
        r = pb_stacks_waits(&s, q->depth);
    if (r == 0 && q->depth != PB_WAITS_NONE && !q->target->core)
        take_collectives(&(struct copying){.room = room}, &s, q->several);
    if (r == 0) {
        struct pb_stacks *answer = copy_stacks(room, &s);
        pb_task_answer(room, answer);
        r = answer ? 0 : pb_fail(err, -ENOSPC, "its stacks are too large");
    }
    pb_stacks_done(&s);
    return r;
}

static void add_stall(struct pb_stacks *s, const struct pb_stall *stall, enum pb_stall_role role)
{
    size_t len = strlen(s->verdict);
    const char *join = len ? "; " : "";
    bool missing = stall->kind == PB_STALL_NOT_JOINED, known = false;

    for (size_t i = 0; i < s->waits.n; i++) /* wait_ranks.c has named it */
        known = known || s->waits.at[i].absent[0];
    if (role == PB_STALL_NO_PART || (missing && known))
        return;
    if (role == PB_STALL_OTHER && missing)
        snprintf(s->verdict + len, sizeof(s->verdict) - len,
                 "%shas not issued %s number %llu of group %s; ranks that have, for %.0f s: %s", join,
                 stall->op, (unsigned long long)stall->number, stall->group, stall->seconds, stall->waiting);
    else
        snprintf(s->verdict + len, sizeof(s->verdict) - len, "%s%s", join, stall->text);
}

/* Says in the verdict of each rank what holds up its group. */
static void compare_collectives(struct pb_stacks_answer *answers, size_t nanswers)
{
    struct pb_collective_rank *ranks = calloc(nanswers + 1, sizeof(*ranks));
    struct pb_stacks **of = calloc(nanswers + 1, sizeof(struct pb_stacks *));
    unsigned char *roles = calloc(nanswers + 1, 1);
    struct pb_stall stall;
    size_t n = 0;

    for (size_t i = 0; ranks && of && i < nanswers; i++) {
        /* The answer is in our own memory; const is only for its readers. */
        struct pb_stacks *s = answers[i].result == 0 ? (struct pb_stacks *)answers[i].stacks : NULL;
        if (s && s->collectives) {
            of[n] = s;
            ranks[n++] = *s->collectives;
        }
    }
    if (roles && n > 1 && pb_collectives_judge(ranks, n, STANDS_S, &stall, roles))
        for (size_t i = 0; i < n; i++)
            add_stall(of[i], &stall, roles[i]);
    free(ranks);
    free(of);
    free(roles);
}

int pb_stacks_ask(const struct pb_ask *ask, const struct pb_targets *targets,
                  const struct pb_stacks_options *options, enum pb_waits_depth depth,
                  struct pb_stacks_answer *ret)
{
    struct question *questions = calloc(targets->n + 1, sizeof(*questions));
    struct pb_task *tasks = calloc(targets->n + 1, sizeof(*tasks));

    if (!questions || !tasks) {
        free(questions);
        free(tasks);
        return -ENOMEM;
    }
    for (size_t i = 0; i < targets->n; i++) {
        const struct pb_target *t = &targets->at[i];
        unsigned limit_ms = t->core ? CORE_LIMIT_MS : LIVE_LIMIT_MS;
        questions[i] = (struct question){t, *options, depth, targets->n > 1};
        /* Leaves time to show the threads read so far, when others cannot be read in time. */
        if (ask && ask->limit_ms && !questions[i].options.within_ms)
            questions[i].options.within_ms = ask->limit_ms / 2 + 1;
        tasks[i] = (struct pb_task){.work = take_process,
                                    .arg = &questions[i],
                                    .pid = t->pid,
                                    .limit_ms = limit_ms,
                                    .room_size = ROOM};
    }
    pb_tasks_run(ask, tasks, targets->n, 0);
    for (size_t i = 0; i < targets->n; i++)
        ret[i] = (struct pb_stacks_answer){tasks[i].result, tasks[i].err, pb_task_answer_of(&tasks[i]),
                                           tasks[i].room};
    if (depth != PB_WAITS_NONE) {
        pb_waits_compare_ranks(ret, targets->n);
        compare_collectives(ret, targets->n);
    }
    free(questions);
    free(tasks);
    return 0;
}

void pb_stacks_answers_done(struct pb_stacks_answer *answers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pb_room_free(answers[i].room);
        answers[i] = (struct pb_stacks_answer){0};
    }
}
