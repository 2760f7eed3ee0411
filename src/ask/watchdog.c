/* watchdog: see watchdog.h. */
#include "ask/watchdog.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ask/stacks.h"
#include "base/vector.h"

static int keep_stacks(const struct pb_stuck *stuck, struct pb_store *store)
{
    const struct pb_stacks_options options = {.locals = true};
    struct pb_target target = {.pid = stuck->pid};
    struct pb_stacks_answer answer = {0};

    snprintf(target.label, sizeof(target.label), "%s", stuck->label);
    int r =
        pb_stacks_ask(NULL, &(struct pb_targets){.at = &target, .n = 1}, &options, PB_WAITS_MAIN, &answer);
    if (r == 0)
        r = answer.result;
    const struct pb_stacks *stacks = answer.stacks;
    for (size_t i = 0; r == 0 && i < stacks->n; i++) {
        const struct pb_shown_thread *t = &stacks->threads[i];
        struct pb_hang_frame frame = {.pid = stuck->pid,
                                      .tid = t->native.tid,
                                      .thread = t->name[0] ? t->name : t->native.name,
                                      .process = stuck->label,
                                      .seconds = (double)stuck->ns / 1e9,
                                      .verdict = stacks->verdict[0] ? stacks->verdict : NULL};
        for (size_t k = 0; k < t->nframes; k++) {
            frame.depth = (int)k;
            frame.function = t->frames[k].code->qualname;
            frame.file = t->frames[k].code->file;
            frame.line = t->frames[k].line;
            _cleanup_free_ char *locals = pb_py_locals_lines(t->frames[k].locals);
            frame.locals = locals;
            pb_store_hang(store, &frame);
        }
    }
    pb_stacks_answers_done(&answer, 1);
    return r;
}

static size_t find_recorded(const struct pb_watchdog *w, pid_t pid)
{
    size_t i = 0;

    while (i < w->n && w->recorded[i] != pid)
        i++;
    return i;
}

static int note_recorded(struct pb_watchdog *w, pid_t pid)
{
    if (pb_grow((void **)&w->recorded, &w->cap, w->n, sizeof(*w->recorded), NULL) < 0)
        return -ENOMEM;
    w->recorded[w->n++] = pid;
    return 0;
}

/* Drops ended processes: their pids may be reused. */
static void forget_gone(struct pb_watchdog *w, struct pb_sampler *s)
{
    for (size_t i = 0; i < w->n;)
        if (pb_sampler_watches(s, w->recorded[i]))
            i++;
        else
            w->recorded[i] = w->recorded[--w->n];
}

void pb_watchdog_check(struct pb_watchdog *w, struct pb_sampler *s, struct pb_store *store)
{
    struct pb_stuck stuck;

    if (!w->limit_ns)
        return;
    forget_gone(w, s);
    for (size_t i = 0; pb_sampler_stuck(s, i, w->limit_ns, &stuck) == 0; i++) {
        size_t at = find_recorded(w, stuck.pid);
        bool stands = stuck.ns >= w->limit_ns, known = at < w->n;
        if (!stands && known)
            w->recorded[at] = w->recorded[--w->n];
        if (stands && !known && note_recorded(w, stuck.pid) == 0) {
            if (keep_stacks(&stuck, store) == 0)
                w->hangs++;
            else
                w->n--; /* retried the next time */
        }
    }
}

void pb_watchdog_done(struct pb_watchdog *w)
{
    free(w->recorded);
    *w = (struct pb_watchdog){0};
}
