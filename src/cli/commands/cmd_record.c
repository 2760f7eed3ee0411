/* record: samples into tables that outlive both processes: a profile of any time of them can be made later.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ask/watchdog.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/profile/profile_run.h"
#include "profile/meter.h"
#include "profile/store.h"

#define FLUSH_NS PB_NS_PER_S

static const struct pb_option options[] = {
    {'d', "duration", "TIME", "how long (default: until the process ends, or Ctrl-C)"},
    {0, "background", NULL, "go on when the terminal is gone; prints how to end it"},
    {0, "watchdog", "TIME", "keep all stacks with locals when the main thread stands still that long"},
    {0, "size", "MB", "what the recording may hold (default 64); the oldest makes room"},
    PB_PROFILE_OPTIONS,
    {0},
};

struct recording {
    const struct pb_call *call;
    struct pb_profile_plan plan;
    unsigned duration_ms;
    uint64_t size;
    double set_rate; /* as it was last looked up */
    struct pb_profile *p;
    struct pb_sampler *s;
    struct pb_store *store;
    struct pb_meter *meter;
    struct pb_watchdog watchdog;
};

static void recording_done(struct recording *r)
{
    pb_watchdog_done(&r->watchdog);
    pb_sampler_free(r->s);
    if (pb_meter_stop(r->meter)) /* else a thread of it still writes there */
        pb_store_close(r->store);
    pb_profile_free(r->p);
}

static int parse(const struct pb_call *call, struct recording *r, struct pb_err *err)
{
    const char *duration = pb_call_option(call, "duration"), *watchdog = pb_call_option(call, "watchdog"),
               *size = pb_call_option(call, "size");
    unsigned ms = 0;
    char *end;

    int result = pb_profile_plan(call, &r->plan, err);
    if (result < 0)
        return result;
    r->plan.sampler.with_gil = true;
    r->set_rate = pb_profile_set_rate(call);
    if (duration && pb_parse_duration(duration, &r->duration_ms) < 0)
        return pb_fail(err, PB_USAGE, "--duration takes a time such as 10, 500ms or 2m, not '%s'", duration);
    if (watchdog && (pb_parse_duration(watchdog, &ms) < 0 || ms == 0))
        return pb_fail(err, PB_USAGE, "--watchdog takes a time such as 60s or 5m, not '%s'", watchdog);
    r->watchdog.limit_ns = ms * PB_NS_PER_MS;
    if (size) {
        double mb = strtod(size, &end);
        if (*end || !(mb >= 1 && mb <= 1e6))
            return pb_fail(err, PB_USAGE, "--size takes megabytes from 1 on, not '%s'", size);
        r->size = (uint64_t)(mb * (1 << 20));
    }
    return 0;
}

static int open_all(struct recording *r, struct pb_err *err)
{
    int result = pb_profile_new(0, &r->p);
    if (result == 0)
        result = pb_sampler_new(&r->plan.sampler, r->p, NULL, &r->s);
    if (result == 0)
        result = pb_profile_attach(r->call, r->s, r->p, err);
    if (result < 0)
        return result;
    const struct pb_targets *targets = &r->call->targets;
    _cleanup_free_ pid_t *pids = calloc(targets->n, sizeof(*pids));
    if (!pids)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < targets->n; i++)
        pids[i] = targets->at[i].pid;
    struct pb_store_options store = {.bound = r->size,
                                     .pids = pids,
                                     .npids = targets->n,
                                     .command = pb_profile_facts(r->p)->title,
                                     .rate = r->plan.sampler.rate,
                                     .clock = pb_profile_facts(r->p)->clock};
    result = pb_store_new(&store, &r->store, err);
    if (result < 0)
        return result;
    return pb_meter_start(pb_store_arena(r->store), pids, targets->n, &r->meter, err);
}

/* Goes on at the rate that is set by now. A recording has one rate, which its samples count by: what is taken
 * at another goes into a new one. */
static int follow_rate(struct recording *r, struct pb_err *err)
{
    const struct pb_watchdog watchdog = {.limit_ns = r->watchdog.limit_ns, .hangs = r->watchdog.hangs};
    double rate = pb_profile_set_rate(r->call);

    if (rate == r->set_rate)
        return 0;
    r->set_rate = rate;
    pb_sampler_sum_up(r->s);
    int result = pb_store_flush(r->store, r->p);
    if (result < 0)
        return result;
    recording_done(r);
    r->p = NULL;
    r->s = NULL;
    r->store = NULL;
    r->meter = NULL;
    r->watchdog = watchdog;
    r->plan.sampler.rate = rate;
    return open_all(r, err);
}

static int record(struct recording *r, struct pb_err *err)
{
    uint64_t start = pb_now_ns(), next = start + FLUSH_NS;
    int result = 0;

    pb_profile_hurry(&r->plan.sampler);
    while (result == 0 && !pb_profile_signal() && pb_sampler_wait(r->s) != -EINTR &&
           pb_sampler_tick(r->s) > 0) {
        uint64_t now = pb_now_ns();
        if (now >= next) {
            result = pb_store_flush(r->store, r->p);
            pb_watchdog_check(&r->watchdog, r->s, r->store);
            next = now + FLUSH_NS;
            if (result == 0 && (result = follow_rate(r, err)) < 0)
                return result;
        }
        if (r->duration_ms && now - start >= r->duration_ms * PB_NS_PER_MS)
            break;
    }
    pb_sampler_sum_up(r->s);
    int flushed = pb_store_flush(r->store, r->p);
    result = result < 0 ? result : flushed;
    return result < 0 ? pb_fail(err, result, "the recording cannot be written: %s", strerror(-result)) : 0;
}

static void say(const struct recording *r)
{
    const struct pb_profile_facts *f = pb_profile_facts_of(r->p);
    char methods[256];

    printf("%s: %.1f s at %g Hz, %s time\n  stacks read %s\n", pb_store_path(r->store),
           (double)f->duration_ns / 1e9, f->rate, f->clock,
           pb_profile_methods(r->p, methods, sizeof(methods)));
    if (r->watchdog.hangs)
        printf("  stood still %u time%s: the stacks with locals are in python.hangs\n", r->watchdog.hangs,
               r->watchdog.hangs == 1 ? "" : "s");
    printf("  probing flamegraph --from %s -o FILE\n", pb_store_path(r->store));
}

static void leave_terminal(void)
{
    _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    setsid();
    fflush(stdout);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
}

/* The child opens everything (who traces must be who opened) and tells the parent what came of it. */
static int run_background(struct recording *r, struct pb_err *err)
{
    int pipe_fds[2], told[1];
    struct pb_err child_err = {0};
    char path[256] = "";

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return pb_fail(err, -errno, "no pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        return pb_fail(err, -errno, "no process: %s", strerror(errno));
    if (child == 0) {
        close(pipe_fds[0]);
        told[0] = open_all(r, &child_err);
        if (told[0] == 0)
            snprintf(path, sizeof(path), "%s", pb_store_path(r->store));
        bool heard = write(pipe_fds[1], told, sizeof(told)) == sizeof(told) &&
                     write(pipe_fds[1], told[0] < 0 ? child_err.text : path, 256) == 256;
        close(pipe_fds[1]);
        if (told[0] < 0 || !heard)
            _exit(1);
        leave_terminal();
        int result = record(r, &child_err);
        recording_done(r);
        _exit(result < 0);
    }
    close(pipe_fds[1]);
    bool heard = read(pipe_fds[0], told, sizeof(told)) == sizeof(told) && read(pipe_fds[0], path, 256) == 256;
    close(pipe_fds[0]);
    if (!heard)
        return pb_fail(err, -EIO, "the recorder ended before it began");
    if (told[0] < 0) {
        waitpid(child, NULL, 0);
        return pb_fail(err, told[0], "%.255s", path);
    }
    printf("%s: recording in the background (kill %d ends it)\nprobing flamegraph --from %s -o FILE\n", path,
           (int)child, path);
    return 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(recording_done) struct recording r = {.call = call};

    int result = parse(call, &r, err);
    if (result < 0)
        return result;
    pb_profile_catch_signals();
    if (pb_call_option(call, "background"))
        return run_background(&r, err);
    result = open_all(&r, err);
    if (result < 0)
        return result;
    fprintf(stderr, "recording into %s (Ctrl-C ends)\n", pb_store_path(r.store));
    result = record(&r, err);
    if (result == 0)
        say(&r);
    return result;
}

const struct pb_command pb_cmd_record = {
    .name = "record",
    .summary = "sample into tables that outlive the process; profiles of any time of it can be made later",
    .synopsis = "[--background] [--watchdog TIME] [--duration TIME]",
    .text =
        "Writes python.samples and python.stacks into a run folder of its own, bounded in size; and once "
        "a second\n"
        "what the process and the GPUs take: python.memory, gpu_metrics. All are tables of the process in "
        "SQL.\n"
        "With --watchdog it keeps all stacks with locals (python.hangs) each time the main thread stands "
        "at the\n"
        "same line in every sample for that long: what it was doing is known even after somebody has "
        "killed it.",
    .example = "probing -t 4711 record --background --watchdog 60s\n"
               "probing flamegraph --from 4711 --since '5m ago' -o hang.svg",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_TOGETHER,
    .run = run,
};
