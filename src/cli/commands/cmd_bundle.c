/* bundle: an incident in one file, for somebody who was not there. */
#include "ask/process_settings.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/bundle/bundle.h"
#include "cli/values.h"
#include "diagnose/diagnose.h"
#include "diagnose/ended.h"
#include "print/outlet.h"
#include "remote/procinfo.h"
#include "remote/runs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What is known of a process before anything is collected. */
static void describe_process(const struct pb_runs *runs, const struct pb_target *target,
                             struct pb_bundle_process *ret)
{
    const struct pb_run_id id = {target->pid, target->start_time, target->program};
    struct pb_procinfo info;

    ret->target = *target;
    if (!target->dead) {
        pb_redact_cmdline(target->pid, ret->command, sizeof(ret->command));
        if (pb_procinfo_identify(target->pid, &info) == 0)
            ret->target.start_time = info.start_time;
        return;
    }
    const struct pb_run_info *run = pb_runs_find_dead(runs, &id);
    if (!run)
        return;
    char rank[16];
    pb_run_get(run, "command", ret->command, sizeof(ret->command));
    pb_run_get(run, "python", ret->python, sizeof(ret->python));
    if (pb_rank_parse(pb_run_get(run, "rank", rank, sizeof(rank))) >= 0)
        pb_target_set_rank(&ret->target, pb_rank_parse(rank));
    ret->target.start_time = run->id.start_time;
}

/* The ranks of the same job that have ended, which no name finds any more: *ret gets them behind n. */
static size_t add_ended(const struct pb_call *call, const struct pb_runs *runs, struct pb_bundle_process *ret,
                        size_t n, size_t most)
{
    struct pb_diag_jobs jobs = {0};
    struct pb_err ignored = {0};

    int r = pb_diag_jobs_find(&call->ask, &call->targets, &jobs, &ignored);
    if (r == 0)
        r = pb_diag_ended_add(&call->ask, &call->targets, &jobs, &ignored);
    for (size_t i = 0; r == 0 && i < jobs.n; i++)
        for (size_t k = 0; k < jobs.at[i].nended && n < most; k++) {
            const struct pb_diag_ended *e = &jobs.at[i].ended[k];
            const struct pb_target target = {
                .pid = e->pid, .dead = true, .start_time = e->start_time, .program = e->program};
            size_t same = 0;
            while (same < n &&
                   (ret[same].target.pid != e->pid || ret[same].target.start_time != e->start_time))
                same++;
            if (e->pid > 0 && same == n)
                describe_process(runs, &target, &ret[n++]);
        }
    pb_diag_jobs_done(&jobs);
    return n;
}

static int find_processes(const struct pb_call *call, struct pb_bundle *b, struct pb_err *err)
{
    enum { ENDED = 256 };
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};
    size_t most = call->targets.n + ENDED;

    int r = pb_runs_scan(&runs, err);
    if (r < 0)
        return r;
    b->processes = calloc(most, sizeof(*b->processes));
    if (!b->processes)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < call->targets.n; i++)
        describe_process(&runs, &call->targets.at[i], &b->processes[b->nprocesses++]);
    if (call->all)
        b->nprocesses = add_ended(call, &runs, b->processes, b->nprocesses, most);
    return 0;
}

static void print_result(const struct pb_bundle *b, const char *path, uint64_t size, double seconds)
{
    printf("%s: %zu process%s, %.1f MB, %.1f s\n", path, b->nprocesses, b->nprocesses == 1 ? "" : "es",
           (double)size / (1 << 20), seconds);
    for (size_t i = 0; i < b->nleft_out; i++) {
        pb_put_between(stdout, "  without ", b->left_out[i].name, ": ");
        pb_put_between(stdout, "", b->left_out[i].why, "\n");
    }
    printf("  probing -t %s backtrace | query | flamegraph | diagnose | torch\n", path);
}

struct making {
    const struct pb_call *call;
    struct pb_bundle *b;
    const char *path;
};

/* In a child, so that the parts are removed however that ends. */
static int make_file(void *arg, struct pb_err *err)
{
    const struct making *making = arg;
    const struct pb_call *call = making->call;
    struct pb_bundle *b = making->b;
    uint64_t began = pb_now_ns(), size = 0;

    int r = pb_bundle_collect(call, b, err);
    if (r == 0)
        r = pb_bundle_write(b, making->path, (uint64_t)pb_call_number(call, "max"), &size, err);
    if (r == 0)
        print_result(b, making->path, size, (double)(pb_now_ns() - began) / 1e9);
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *given = pb_call_option(call, "output");
    time_t now = time(NULL);
    char path[64];
    struct tm tm;
    struct pb_bundle *b = calloc(1, sizeof(*b));

    if (!b)
        return pb_fail(err, -ENOMEM, "out of memory");
    gmtime_r(&now, &tm);
    strftime(b->made, sizeof(b->made), "%Y-%m-%d %H:%M:%S", &tm);
    strftime(path, sizeof(path), "incident-%Y%m%d-%H%M%S.probing", &tm);
    snprintf(b->release, sizeof(b->release), "%s", PROBING_VERSION);
    snprintf(b->named, sizeof(b->named), "%s", call->target);
    int r = find_processes(call, b, err);
    struct making making = {call, b, given ? given : path};
    if (r == 0)
        r = pb_bundle_in_child((char *[]){b->folder, NULL}, make_file, &making, call, err);
    pb_bundle_done(b);
    free(b);
    return r;
}

static const struct pb_option options[] = {
    {'o', "output", PB_TEXT("FILE"), "where it goes (default: incident-TIME.probing)"},
    {0, "max", PB_SIZE(.least = 65536, .most = 4e9, .usual = 200 << 20),
     "most bytes of the file (default 200MB); what does not fit is named"},
    {0, "timeout", PB_TIME(.least = 1000, .usual = 30000),
     "leave out a part that takes longer: 30, 500ms, 2m (default 30s)"},
    {0},
};

const struct pb_command pb_cmd_bundle = {
    .name = "bundle",
    .summary = "an incident in one file: stacks, findings, recorded rows, settings, the machine",
    .synopsis = "[-o FILE]",
    .text = "With --all: all ranks, and those of the same job that have ended. The file has the stacks with "
            "locals and source lines, what `diagnose` finds, recorded rows, recordings, a second of samples, "
            "settings, environment, versions, cgroup, memory and the kernel's log. Secrets are masked; names "
            "of functions, files and modules are not. What a hung rank does not answer is named in the "
            "manifest; the rest is there.\n\n"
            "FILE is a target: backtrace, diagnose, config, query, tables, memory, torch, flamegraph and "
            "`serve FILE` answer from it, on any machine. It is a zip of text, JSON and Parquet; unpacked, "
            "a browser shows its index.html.",
    .example = "probing -t train.py --all bundle -o incident.probing\n"
               "probing -t incident.probing backtrace\n"
               "probing -t incident.probing query \"SELECT count(*) FROM memory_usage\"\n"
               "probing serve incident.probing",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_TOGETHER,
    .run = run,
};
