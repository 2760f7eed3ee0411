/* doctor: whether a process can be probed, what prevents it, and how to change that. */
#include "cli/cli.h"
#include "cli/print/rows.h"
#include "engine/caller/abilities.h"
#include "inject/doctor.h"
#include "remote/means.h"
#include "remote/source.h"
#include "remote/source_agent.h"

#include <stdio.h>
#include <string.h>

static const char *const columns[] = {"target", "check", "state", "found", "remedy"};
static const char *const states[] = {
    [PB_CHECK_OK] = "ok", [PB_CHECK_WARN] = "warning", [PB_CHECK_FAIL] = "fail"};

static void add_row(struct pb_rows *rows, const struct pb_target *target, const struct pb_check *c)
{
    pb_rows_text(rows, target->label);
    pb_rows_text(rows, c->name);
    pb_rows_text(rows, states[c->state]);
    pb_rows_text(rows, c->found);
    pb_rows_text(rows, c->remedy[0] ? c->remedy : NULL);
}

/* Which way backtrace would read the process. It needs no injection, so it is checked on its own. */
static void add_stacks(struct pb_rows *rows, const struct pb_target *target)
{
    struct pb_check c = {.name = "stacks"};
    struct pb_source source = {.fd = -1};
    struct pb_err err = {""};

    if (pb_source_open(target->pid, &source, &err) < 0) {
        c.state = PB_CHECK_WARN;
        snprintf(c.found, sizeof(c.found),
                 "cannot be read: permission denied for ptrace, and no agent in it");
        snprintf(c.remedy, sizeof(c.remedy), "be root, or have an agent injected while that is allowed");
    } else if (source.ops->look) {
        snprintf(c.found, sizeof(c.found), "read through the agent in it, of threads that do not run");
    } else {
        snprintf(c.found, sizeof(c.found), "read from outside, by %s", source.ops->name);
    }
    pb_source_close(&source);
    add_row(rows, target, &c);
}

/* Which parts of the SQL sandbox this machine supports. They do not affect probing the target. */
static void add_sql(struct pb_rows *rows, const struct pb_target *target)
{
    struct pb_check c = {.name = "sql"};
    struct pb_sql_abilities have;
    size_t n = 0;

    pb_sql_abilities(&have);
    const struct {
        int error;
        const char *name, *lost, *remedy;
    } parts[] = {
        {have.seccomp, "seccomp", "no query runs", "allow seccomp"},
        {have.landlock, "Landlock", "archived rows are refused, the rest works",
         "Linux 5.13 and landlock_* allowed"},
        {have.pidfd, "pidfd_open", "a query that hangs ends a second later",
         "Linux 5.3 and pidfd_open allowed"},
        {have.memfd, "memfd_create", "live tables go through a file", "allow memfd_create"},
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i].error == 0)
            continue;
        c.state = PB_CHECK_WARN;
        n = strlen(c.found);
        snprintf(c.found + n, sizeof(c.found) - n, "%sno %s (%s): %s", n ? "; " : "", parts[i].name,
                 strerror(-parts[i].error), parts[i].lost);
        n = strlen(c.remedy);
        snprintf(c.remedy + n, sizeof(c.remedy) - n, "%s%s", n ? "; " : "", parts[i].remedy);
    }
    if (c.state == PB_CHECK_OK)
        snprintf(c.found, sizeof(c.found), "in a sandbox of seccomp and Landlock");
    add_row(rows, target, &c);
}

/* Which way running threads would be sampled. */
static void add_samples(struct pb_rows *rows, const struct pb_target *target)
{
    struct pb_check c = {.name = "samples"};
    struct pb_source source = {.fd = -1};
    char why[240];

    int r = pb_source_open(target->pid, &source, NULL);
    bool through = r == 0 && source.ops->look;
    int bpf = r < 0 || through ? 0 : pb_means_bpf();
    pb_source_close(&source);
    if (r < 0)
        return; /* add_stacks has reported it */
    if (through) {
        c.state = PB_CHECK_WARN;
        snprintf(c.found, sizeof(c.found),
                 "through the agent: a running thread loses its CPU for some 200 us a sample");
        snprintf(c.remedy, sizeof(c.remedy), "be its owner with ptrace allowed, or root");
    } else if (bpf < 0) {
        snprintf(c.found, sizeof(c.found), "running threads are stopped (ptrace), some tens of us a sample");
        snprintf(c.remedy, sizeof(c.remedy), "interrupts (BPF): %s",
                 pb_means_why_no_bpf(bpf, why, sizeof(why)));
    } else {
        snprintf(c.found, sizeof(c.found), "running threads are copied in an interrupt (BPF), about 10 us");
    }
    add_row(rows, target, &c);
}

/* Kernel features that are missing or filtered. Probing works without each of them. */
static void add_kernel(struct pb_rows *rows, const struct pb_target *target)
{
    struct pb_check c = {.name = "kernel"};
    bool schedstat = pb_means_schedstat(), openat2 = pb_means_openat2();

    c.state = schedstat && openat2 ? PB_CHECK_OK : PB_CHECK_WARN;
    if (c.state == PB_CHECK_OK)
        snprintf(c.found, sizeof(c.found), "has all features that are used");
    else
        snprintf(c.found, sizeof(c.found), "%s%s%s", schedstat ? "" : "no schedstat: sampling costs more",
                 schedstat || openat2 ? "" : "; ",
                 openat2 ? "" : "no openat2: files are opened step by step");
    add_row(rows, target, &c);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_rows rows;
    bool failed = false;

    pb_rows_init(&rows, columns, 5);
    for (size_t t = 0; t < call->targets.n; t++) {
        struct pb_check checks[PB_CHECKS_MAX];
        int n = pb_inject_check(call->targets.at[t].pid, checks, PB_CHECKS_MAX);
        for (int i = 0; i < n; i++) {
            add_row(&rows, &call->targets.at[t], &checks[i]);
            failed = failed || checks[i].state == PB_CHECK_FAIL;
        }
        if (n > 1) { /* such a process exists */
            add_stacks(&rows, &call->targets.at[t]);
            add_samples(&rows, &call->targets.at[t]);
            add_kernel(&rows, &call->targets.at[t]);
            add_sql(&rows, &call->targets.at[t]);
        }
    }
    int r = pb_rows_print(&rows, call->format, NULL, err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed ? PB_FAILED : 0;
}

const struct pb_command pb_cmd_doctor = {
    .name = "doctor",
    .summary = "whether a process can be probed, and if not, what to do",
    .synopsis = "",
    .text = "Only checks: nothing is attached. Exit status 1 if the process cannot be probed.",
    .example = "probing -t 4711 doctor",
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_ROWS | PB_CMD_TOGETHER,
    .run = run,
};
