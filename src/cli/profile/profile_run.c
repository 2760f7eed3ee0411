/* profile_run: see profile_run.h. */
#include "cli/profile/profile_run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask/process_settings.h"
#include "base/cleanup.h"
#include "cli/stop.h"
#include "cli/values.h"

#define FULL_RATE 1000 /* Hz; probing.sample_rate is a share of it */

static volatile sig_atomic_t caught;
static atomic_bool cancelled;

static void on_signal(int number)
{
    caught = number;
    atomic_store(&cancelled, true);
}

void pb_profile_catch_signals(void)
{
    pb_signal_take(SIGINT, on_signal);
    pb_signal_take(SIGTERM, on_signal);
    pb_signal_take(SIGHUP, on_signal);
}

int pb_profile_signal(void)
{
    return caught;
}

const atomic_bool *pb_profile_cancelled(void)
{
    return &cancelled;
}

int pb_profile_plan(const struct pb_call *call, struct pb_profile_plan *ret, struct pb_err *err)
{
    struct pb_profile_plan plan = {0};

    if (!pb_call_option(call, "rate")) {
        struct pb_settings settings;
        pb_settings_for(&call->ask, call->targets.n ? &call->targets.at[0] : NULL, &settings);
        plan.sampler.rate = settings.at[PB_SET_SAMPLE_RATE].number * FULL_RATE;
    } else {
        plan.sampler.rate = pb_call_number(call, "rate");
    }
    plan.sampler.cpu = pb_call_option(call, "cpu");
    plan.sampler.gil = pb_call_option(call, "gil");
    plan.sampler.native = pb_call_option(call, "native");
    plan.sampler.no_stop = pb_call_option(call, "no-stop");
    plan.sampler.force = pb_call_option(call, "force");
    plan.sampler.subprocesses = pb_call_option(call, "subprocesses");
    plan.sampler.trace = getenv("PROBING_TRACE_SAMPLES") ? stderr : NULL; /* for developers of the sampler */
    plan.idle = pb_call_option(call, "idle");
    if (plan.sampler.cpu && pb_call_option(call, "wall"))
        return pb_fail(err, PB_USAGE, "--cpu and --wall exclude each other");
    *ret = plan;
    return 0;
}

void pb_profile_say_notes(const struct pb_sampler *s, FILE *out)
{
    char text[512];
    unsigned left = pb_sampler_left(s);

    for (size_t i = 0; pb_sampler_note(s, i, text, sizeof(text)); i++)
        fprintf(out, "  %s\n", text);
    if (left)
        fprintf(out, "  %u process%s ended meanwhile\n", left, left == 1 ? "" : "es");
}

/* Marks the threads that mostly wait for work (queues, pools, writers of logs): not the main thread, and
 * running much less than the thread that runs most. The place where such a thread waits, or an event loop for
 * events, is not what a program spends its time on. Returns how many samples the other threads have. */
static uint64_t mark_idle(const struct pb_profile *p, bool *ret)
{
    enum { OF_THE_BUSIEST = 4 };
    size_t n = pb_profile_nthreads(p);
    _cleanup_free_ uint64_t *all = calloc(n + 1, sizeof(*all)), *running = calloc(n + 1, sizeof(*running));
    uint64_t others = 0, most = 0;

    _cleanup_free_ bool *loops = calloc(n + 1, sizeof(*loops)); /* what blocks a loop is its work */
    for (size_t i = 0; loops && i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        loops[c.thread] |= pb_profile_waits_for_events(p, &c);
    }
    for (size_t i = 0; all && running && loops && i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        if (pb_profile_waits_for_events(p, &c))
            continue;
        all[c.thread] += c.samples;
        running[c.thread] += c.flags & PB_SAMPLE_WAITING && !loops[c.thread] ? 0 : c.samples;
        most = running[c.thread] > most ? running[c.thread] : most;
    }
    for (uint32_t i = 0; all && running && i < n; i++) {
        struct pb_profile_thread t = pb_profile_thread_at(p, i);
        ret[i] = t.pid != t.tid && running[i] * OF_THE_BUSIEST < most;
        others += ret[i] || t.hidden ? 0 : all[i];
    }
    return others ? others : pb_profile_samples(p);
}

const char *pb_profile_hottest(const struct pb_profile *p, int n, char *buf, size_t size)
{
    _cleanup_free_ bool *idle = calloc(pb_profile_nthreads(p) + 1, sizeof(*idle));
    _cleanup_free_ struct pb_hot *hot = NULL;
    size_t len = 0;
    char label[160];

    buf[0] = '\0';
    if (!idle)
        return buf;
    double all = (double)mark_idle(p, idle);
    int count = pb_profile_hot(p, idle, &hot);
    for (int i = 0; i < count && i < n && hot[i].self && len < size; i++)
        len += (size_t)snprintf(buf + len, size - len, "%s%s %.1f%%", i ? ", " : "",
                                pb_profile_label(p, hot[i].function, label, sizeof(label)),
                                100 * (double)hot[i].self / all);
    return buf;
}
