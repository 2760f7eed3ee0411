/* stuck: whether a thread makes progress, judged by its samples; see pb_sampler_stuck. */
#include <errno.h>
#include <sys/syscall.h>

#include "base/time.h"
#include "profile/watch.h"

#define WINDOW_MAX_NS (4 * PB_NS_PER_S)
#define WINDOW_MIN_NS PB_NS_PER_S
#define WAKES_MIN     2
#define WAKES_A_WHILE                                                                                        \
    0.75 /* wake-ups a second: a data loader that checks its workers every five seconds is stuck */

static bool waits_for_gil(const struct pb_process_watch *w, const struct pb_watched *t)
{
    return w->py && t->python && t->state == PB_WATCH_SETTLED && t->moment.syscall == SYS_futex &&
           pb_py_waits_for_gil(w->py, &t->py, t->moment.syscall_args[0]);
}

static void count_wakes(const struct pb_process_watch *w, struct pb_watched *t, uint64_t limit_ns,
                        uint64_t now)
{
    uint64_t length = limit_ns / 2 > WINDOW_MAX_NS   ? WINDOW_MAX_NS
                      : limit_ns / 2 < WINDOW_MIN_NS ? WINDOW_MIN_NS
                                                     : limit_ns / 2;
    bool begins = !t->window_from;

    if (begins) {
        t->window_whole = false;
        t->polled = 0;
    }
    /* A thread that waits for the GIL wakes up every few milliseconds to ask for it: that is not polling. */
    if (begins || waits_for_gil(w, t)) {
        t->window_from = now;
        t->window_woke = t->woke;
        t->window_whole = !begins;
        return;
    }
    if (now - t->window_from < length)
        return;
    double wakes = t->woke - t->window_woke, seconds = (double)(now - t->window_from) / PB_NS_PER_S;
    if (wakes >= WAKES_MIN && wakes >= WAKES_A_WHILE * seconds)
        t->polled = now;
    t->window_whole = true;
    t->window_from = now;
    t->window_woke = t->woke;
}

int pb_sampler_stuck(struct pb_sampler *s, size_t i, uint64_t limit_ns, struct pb_stuck *ret)
{
    uint64_t now = pb_now_ns();

    if (i >= s->n)
        return -ENOENT;
    struct pb_process_watch *w = s->processes[i];
    *ret = (struct pb_stuck){.pid = w->pid, .label = w->label};
    for (size_t k = 0; k < w->n && !w->ended; k++) {
        struct pb_watched *t = &w->threads[k];
        if (t->tid != w->pid || !t->moved)
            continue;
        count_wakes(w, t, limit_ns, now);
        if (t->window_whole)
            ret->ns = now - (t->polled > t->moved ? t->polled : t->moved);
    }
    return 0;
}
