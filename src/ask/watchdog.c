/* watchdog: see watchdog.h. */
#include "ask/watchdog.h"

#include <stdio.h>
#include <stdlib.h>

#include "ask/stacks.h"

static int keep(const struct pb_stuck *stuck, struct pb_store *store)
{
    const struct pb_stacks_options options = {.locals = true};
    struct pb_target target = {.pid = stuck->pid};
    struct pb_stacks stacks;

    snprintf(target.label, sizeof(target.label), "%s", stuck->label);
    int r = pb_stacks_open(&target, &options, &stacks, NULL);
    if (r < 0)
        return r;
    r = pb_stacks_take(&stacks, &options, NULL);
    if (r == 0)
        r = pb_stacks_waits(&stacks, PB_WAITS_MAIN);
    for (size_t i = 0; r == 0 && i < stacks.n; i++) {
        const struct pb_shown_thread *t = &stacks.threads[i];
        struct pb_hang_frame frame = {.pid = stuck->pid,
                                      .tid = t->native.tid,
                                      .thread = t->name[0] ? t->name : t->native.name,
                                      .process = stuck->label,
                                      .seconds = (double)stuck->ns / 1e9,
                                      .verdict = stacks.verdict[0] ? stacks.verdict : NULL};
        for (size_t k = 0; k < t->nframes; k++) {
            frame.depth = (int)k;
            frame.function = t->frames[k].code->qualname;
            frame.file = t->frames[k].code->file;
            frame.line = t->frames[k].line;
            frame.locals = t->frames[k].locals;
            pb_store_hang(store, &frame);
        }
    }
    pb_stacks_done(&stacks);
    return r;
}

void pb_watchdog_check(struct pb_watchdog *w, const struct pb_sampler *s, struct pb_store *store)
{
    struct pb_stuck stuck;

    for (size_t i = 0; w->limit_ns && pb_sampler_stuck(s, i, &stuck) == 0; i++) {
        if (i == w->n) {
            bool *more = realloc(w->told, (w->n + 1) * sizeof(*more));
            if (!more)
                return;
            w->told = more;
            w->told[w->n++] = false;
        }
        bool stands = stuck.ns >= w->limit_ns;
        if (stands && !w->told[i] && keep(&stuck, store) == 0)
            w->hangs++;
        w->told[i] = stands;
    }
}

void pb_watchdog_done(struct pb_watchdog *w)
{
    free(w->told);
    *w = (struct pb_watchdog){0};
}
