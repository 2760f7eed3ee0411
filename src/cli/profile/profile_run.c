/* profile_run: see profile_run.h. */
#include "cli/profile/profile_run.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ask/settings.h"
#include "base/cleanup.h"
#include "cli/stop.h"

#define RATE_MAX   1e6
#define FULL_RATE  1000 /* that probing.sample_rate is a share of */
#define HURRY_RATE 2000 /* more often than that we would be ahead of others all the time */

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
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

double pb_profile_set_rate(const struct pb_call *call)
{
    struct pb_settings settings;

    if (pb_call_option(call, "rate") || call->targets.n == 0)
        return 0;
    pb_settings_kept(call->targets.at[0].pid, &settings);
    return settings.at[PB_SET_SAMPLE_RATE].number * FULL_RATE;
}

int pb_profile_plan(const struct pb_call *call, struct pb_profile_plan *ret, struct pb_err *err)
{
    struct pb_profile_plan plan = {0};
    const char *rate = pb_call_option(call, "rate");
    char *end;

    if (!rate) {
        struct pb_settings settings;
        pb_settings_for(&call->ask, call->targets.n ? &call->targets.at[0] : NULL, &settings);
        plan.sampler.rate = settings.at[PB_SET_SAMPLE_RATE].number * FULL_RATE;
    } else {
        plan.sampler.rate = strtod(rate, &end);
        if (*end || !(plan.sampler.rate >= 0.01 && plan.sampler.rate <= RATE_MAX))
            return pb_fail(err, PB_USAGE, "--rate takes samples a second, 0.01 to %.0f, not '%s'", RATE_MAX,
                           rate);
    }
    plan.sampler.cpu = pb_call_option(call, "cpu");
    plan.sampler.gil = pb_call_option(call, "gil");
    plan.sampler.native = pb_call_option(call, "native");
    plan.sampler.no_stop = pb_call_option(call, "no-stop");
    plan.sampler.force = pb_call_option(call, "force");
    plan.sampler.subprocesses = pb_call_option(call, "subprocesses");
    plan.idle = pb_call_option(call, "idle");
    if (plan.sampler.cpu && pb_call_option(call, "wall"))
        return pb_fail(err, PB_USAGE, "--cpu and --wall exclude each other");
    *ret = plan;
    return 0;
}

/* The command line, the program without its folder. */
static void read_title(pid_t pid, char *ret, size_t size)
{
    char text[1024];

    pb_redact_cmdline(pid, text, sizeof(text));
    const char *program = memrchr(text, '/', strcspn(text, " "));
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    if (!text[0])
        snprintf(ret, size, "process %d", (int)pid);
    else
        snprintf(ret, size, "%.255s", program ? program + 1 : text);
}

int pb_profile_attach(const struct pb_call *call, struct pb_sampler *s, struct pb_profile *p,
                      struct pb_err *err)
{
    struct pb_profile_facts *facts = pb_profile_facts(p);
    size_t attached = 0;
    int r = -ESRCH;

    for (size_t i = 0; i < call->targets.n; i++) {
        const struct pb_target *t = &call->targets.at[i];
        struct pb_err one = {0};
        int failed = pb_sampler_attach(s, t->pid, t->label, &one);
        if (failed == 0 && attached++ == 0)
            read_title(t->pid, facts->title, sizeof(facts->title));
        if (failed == 0)
            continue;
        if (call->targets.n > 1)
            fprintf(stderr, "probing: %s: %s: %s\n", call->command->name, t->label,
                    pb_err_text(&one, failed));
        r = pb_fail(err, failed, "%s", pb_err_text(&one, failed));
    }
    return attached ? 0 : call->targets.n > 1 ? PB_FAILED : r;
}

void pb_profile_hurry(const struct pb_sampler_options *options)
{
    struct sched_param ahead = {.sched_priority = 1};

    /* Whoever comes late where CPUs are short sees threads asleep that were running when it was time to look.
     * At rates that take a whole CPU the target would not run any more. */
    if (options->rate > HURRY_RATE)
        return;
    if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &ahead) < 0)
        (void)setpriority(PRIO_PROCESS, 0, -20);
}

const char *pb_profile_hottest(const struct pb_profile *p, int n, char *buf, size_t size)
{
    _cleanup_free_ struct pb_hot *hot = NULL;
    double all = (double)pb_profile_samples(p);
    size_t len = 0;
    char label[160];

    buf[0] = '\0';
    int count = pb_profile_hot(p, &hot);
    for (int i = 0; i < count && i < n && hot[i].self && len < size; i++)
        len += (size_t)snprintf(buf + len, size - len, "%s%s %.1f%%", i ? ", " : "",
                                pb_profile_label(p, hot[i].function, label, sizeof(label)),
                                100 * (double)hot[i].self / all);
    return buf;
}
