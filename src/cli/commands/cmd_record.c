/* record: writes samples into tables that outlive both processes, so that a profile of any time range can be
 * made later. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ask/profile_recorder.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/null.h"
#include "base/process.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/profile/profile_run.h"
#include "cli/profile/recordings.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"

/* A command that runs until Ctrl-C must have an end here, or run in the background on the nodes. */
static int run_over(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err)
{
    bool background = pb_call_option(call, "background");
    unsigned ms = pb_call_ms(call, "duration");

    if (background && pb_cluster_check_background(c, "--duration", err) < 0)
        return PB_USAGE;
    if (background || pb_call_option(call, "list") || pb_call_option(call, "stop"))
        return pb_cluster_each(call, c, s, 0, false, err);
    if (!ms)
        return pb_fail(err, PB_USAGE, "over a cluster it takes --duration TIME or --background");
    return pb_cluster_each(call, c, s, ms, false, err);
}

static const struct pb_option options[] = {
    {'d', "duration", PB_TIME(), "how long (default: until the process ends, or Ctrl-C)"},
    {0, "background", NULL, "keep running when the terminal closes; --stop ends it"},
    {0, "list", NULL, "list recordings, of the process or of all"},
    {0, "stop", NULL, "end the background recordings of the process"},
    {0, "watchdog", PB_TIME(.least = 1),
     "keep all stacks with locals when the main thread stands still that long"},
    {0, "size", PB_NUMBER("MB", .least = 1, .most = 1e6),
     "most that the recording holds (default 64); new rows replace the oldest"},
    PB_PROFILE_OPTIONS,
    {0},
};

struct record_plan {
    const struct pb_call *call;
    struct pb_profile_recorder_options options;
};

static void recording_cleanup(struct pb_profile_recorder **r)
{
    pb_profile_recorder_free(*r);
}

static int parse_record_options(const struct pb_call *call, struct pb_profile_recorder_options *ret,
                                struct pb_err *err)
{
    struct pb_profile_plan plan;

    int r = pb_profile_plan(call, &plan, err);
    if (r < 0)
        return r;
    plan.sampler.with_gil = true;
    *ret = (struct pb_profile_recorder_options){.sampler = plan.sampler,
                                                .targets = &call->targets,
                                                .duration_ns = pb_call_ms(call, "duration") * PB_NS_PER_MS,
                                                .cancelled = pb_profile_cancelled(),
                                                .size = (uint64_t)(pb_call_number(call, "size") * (1 << 20)),
                                                .watchdog_ns = pb_call_ms(call, "watchdog") * PB_NS_PER_MS,
                                                .follow_rate = !pb_call_option(call, "rate")};
    return 0;
}

static void print_summary(const struct pb_profile_recorder *r)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(pb_profile_recorder_profile(r));
    unsigned hangs = pb_profile_recorder_hangs(r);
    char methods[256];

    printf("%s: %.1f s at %g Hz, %s time\n  stacks read %s\n", pb_profile_recorder_path(r),
           (double)f->duration_ns / 1e9, f->rate, f->clock,
           pb_profile_methods(pb_profile_recorder_profile(r), methods, sizeof(methods)));
    pb_profile_say_notes(pb_profile_recorder_sampler(r), stdout);
    if (hangs)
        printf("  stood still %u time%s: the stacks with locals are in python.hangs\n", hangs,
               hangs == 1 ? "" : "s");
    printf("  probing flamegraph --from %s -o FILE\n", pb_profile_recorder_path(r));
}

static void leave_terminal(void)
{
    setsid();
    fflush(stdout);
    pb_null_over(0, 2);
}

/* The child opens everything, since only the process that opened a target can trace it, and reports the
 * result to the parent. */
static int run_background(const struct record_plan *plan, char path[256], pid_t *ret_recorder,
                          struct pb_err *err)
{
    struct pb_profile_recorder *r = NULL;
    int pipe_fds[2], status;
    struct pb_err child_err = {0};

    memset(path, 0, 256);
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return pb_fail(err, -errno, "no pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t child = pb_process_fork(0);
    if (child < 0)
        return pb_fail(err, child, "no process: %s", strerror(-child));
    if (child == 0) {
        close(pipe_fds[0]);
        status = pb_profile_recorder_open(&plan->call->ask, &plan->options, &r, &child_err);
        if (status == 0)
            snprintf(path, 256, "%s", pb_profile_recorder_path(r));
        bool reported = write(pipe_fds[1], &status, sizeof(status)) == sizeof(status) &&
                        write(pipe_fds[1], status < 0 ? child_err.text : path, 256) == 256;
        close(pipe_fds[1]);
        if (status < 0 || !reported)
            _exit(1);
        leave_terminal();
        pb_sampler_hurry(&plan->options.sampler);
        int result = pb_profile_recorder_run(r, &child_err);
        pb_profile_recorder_free(r);
        _exit(result < 0);
    }
    close(pipe_fds[1]);
    bool reported =
        read(pipe_fds[0], &status, sizeof(status)) == sizeof(status) && read(pipe_fds[0], path, 256) == 256;
    close(pipe_fds[0]);
    if (!reported)
        return pb_fail(err, -EIO, "the recorder ended before it began");
    if (status < 0) {
        waitpid(child, NULL, 0);
        return pb_fail(err, status, "%.255s", path);
    }
    *ret_recorder = child;
    return 0;
}

int pb_recordings_start(const struct pb_call *call, bool shown, unsigned limit_ms, char ret_path[256],
                        pid_t *ret_recorder, struct pb_err *err)
{
    struct record_plan plan = {.call = call};

    int r = parse_record_options(call, &plan.options, err);
    if (r < 0)
        return r;
    plan.options.shown = shown;
    if (limit_ms)
        plan.options.duration_ns = limit_ms * PB_NS_PER_MS;
    pb_profile_catch_signals();
    return run_background(&plan, ret_path, ret_recorder, err);
}

static int record_in_background(const struct pb_call *call, struct pb_err *err)
{
    char path[256];
    pid_t recorder;

    int r = pb_recordings_start(call, false, 0, path, &recorder, err);
    if (r == 0)
        printf("%s: recording in the background (kill %d, or record --stop, ends it)\nprobing flamegraph "
               "--from %s -o FILE\n",
               path, (int)recorder, path);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(recording_cleanup) struct pb_profile_recorder *r = NULL;
    struct record_plan plan = {.call = call};

    if (pb_call_option(call, "list"))
        return pb_recordings_list(call, err);
    if (call->targets.n == 0)
        return pb_fail(err, PB_USAGE, "which process? (-t PID; probing list shows them)");
    if (pb_call_option(call, "stop"))
        return pb_recordings_stop(call, false, err);
    for (size_t i = 0; i < call->targets.n; i++)
        if (call->targets.at[i].dead)
            return pb_fail(err, -ESRCH, "process %d has ended", (int)call->targets.at[i].pid);
    if (pb_call_option(call, "background"))
        return record_in_background(call, err);
    int result = parse_record_options(call, &plan.options, err);
    if (result < 0)
        return result;
    pb_profile_catch_signals();
    result = pb_profile_recorder_open(&call->ask, &plan.options, &r, err);
    if (result < 0)
        return result;
    fprintf(stderr, "recording into %s (Ctrl-C ends)\n", pb_profile_recorder_path(r));
    pb_sampler_hurry(&plan.options.sampler);
    result = pb_profile_recorder_run(r, err);
    if (result == 0)
        print_summary(r);
    return result;
}

const struct pb_command pb_cmd_record = {
    .name = "record",
    .summary = "sample into tables that outlive the process, to make profiles of any time later",
    .synopsis = "[--background] [--watchdog TIME] [--duration TIME] | --list | --stop",
    .text = "Writes python.samples and python.stacks into a run directory of its own, bounded in "
            "size; and once a second what the process and the GPUs use: python.memory, "
            "gpu_metrics. In SQL all are tables of the process.\n\n"
            "With --watchdog, each time the main thread stands at the same line in every sample "
            "for that long, all stacks are stored with their locals (python.hangs). So they are "
            "known even after somebody has killed the process.",
    .example = "probing -t 4711 record --background --watchdog 60s\n"
               "probing flamegraph --from 4711 --since '5m ago' -o hang.svg",
    .options = options,
    .flags = PB_CMD_SERVED | PB_CMD_MAY_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER | PB_CMD_CLUSTER,
    .run = run,
    .run_over = run_over,
};
