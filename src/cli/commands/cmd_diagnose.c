/* diagnose: what is wrong with the jobs of this machine, in sentences. */
#include "ask/process_settings.h"
#include "ask/tool_settings.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/diagnose_every.h"
#include "cli/diagnose_jobs.h"
#include "cli/print/diagnosis_print.h"
#include "cli/ranks/ranks.h"
#include "cli/stop.h"
#include "cli/values.h"
#include "diagnose/diagnose.h"
#include "diagnose/turn_on.h"
#include "print/outlet.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int list_rules(const struct pb_diag_rules *rules)
{
    char kind[64], asks[300];

    for (size_t i = 0; i < rules->n; i++) {
        printf("%-16s %-14s ", rules->at[i].name,
               pb_diag_rule_get(&rules->at[i], "kind", 0, kind, sizeof(kind)));
        pb_put_name(stdout, pb_diag_rule_get(&rules->at[i], "asks", 0, asks, sizeof(asks)));
        putchar('\n');
    }
    return 0;
}

/* The rules that find a kind, as they are. */
static int explain_kind(const struct pb_diag_rules *rules, const char *kind, struct pb_err *err)
{
    char value[64];
    bool found = false;

    for (size_t i = 0; i < rules->n; i++) {
        const struct pb_diag_rule *rule = &rules->at[i];
        bool names_it = strcmp(pb_diag_rule_get(rule, "kind", 0, value, sizeof(value)), kind) == 0 ||
                        strcmp(rule->name, kind) == 0;
        char quoted[80];
        snprintf(quoted, sizeof(quoted), "'%.64s'", kind);
        if (!names_it && !strstr(rule->select, quoted))
            continue;
        fputs(found ? "\n" : "", stdout);
        for (const char *at = rule->text; *at;) {
            size_t n = strcspn(at, "\n");
            pb_put_line(stdout, at, n);
            putchar('\n');
            at += n + (at[n] == '\n');
        }
        found = true;
    }
    return found ? 0 : pb_fail(err, PB_USAGE, "no rule finds '%s' (diagnose --rules lists them)", kind);
}

static int show_rules(const struct pb_call *call, const char *folder, const char *kind, struct pb_err *err)
{
    struct pb_diag_rules rules;

    int r = pb_diag_rules_read(&call->ask, folder, &rules, err);
    if (r < 0)
        return r;
    r = kind ? explain_kind(&rules, kind, err) : list_rules(&rules);
    pb_diag_rules_done(&rules);
    return r;
}

/* 10: a finding; 3: a part did not answer. */
static int status_of(const struct pb_diagnosis *d)
{
    bool partial = false;

    for (size_t i = 0; i < d->n; i++) {
        if (d->at[i].verdict)
            return PB_FOUND;
        partial |= d->at[i].answered < d->at[i].asked;
    }
    return partial ? PB_PARTIAL : 0;
}

static bool has_ended(const struct pb_targets *targets)
{
    return targets->n && kill(targets->at[0].pid, 0) < 0 && errno == ESRCH;
}

int pb_diagnose_jobs(const struct pb_ask *ask, struct pb_err *err)
{
    const struct pb_targets all = {0};
    const struct pb_diag_request request = {
        .targets = &all, .rules = pb_tool_setting_get(PB_TOOL_DIAGNOSE_RULES), .recorded = true};
    struct pb_diagnosis d;

    int r = pb_diagnose(ask, &request, &d, err);
    if (r < 0)
        return r;
    pb_diagnosis_print_jobs(&d);
    pb_diagnosis_done(&d);
    return 0;
}

static int diagnose(const struct pb_call *call, const struct pb_diag_request *request, struct pb_err *err)
{
    struct pb_diagnosis d;

    int r = pb_diagnose(&call->ask, request, &d, err);
    if (r < 0)
        return r;
    if (call->target && !d.n && has_ended(&call->targets))
        /* It was there when it was named. */
        pb_ask_note(&call->ask, "it has ended meanwhile, and left nothing that can be read");
    if (call->target && !d.n && !has_ended(&call->targets))
        r = pb_fail(err, -ESRCH, "the target is no process of a job that can be read here");
    else if (pb_call_option(call, "json"))
        pb_diagnosis_print_json(&d);
    else
        pb_diagnosis_print(&d);
    if (r == 0)
        r = status_of(&d);
    pb_diagnosis_done(&d);
    return r;
}

/* Turns on what is needed, and lets the job work for that time. *ret: to be turned back. */
static int watch(const struct pb_call *call, struct pb_diag_turned_on **ret, struct pb_err *err)
{
    uint64_t until;
    size_t n;

    if (!call->target)
        return pb_fail(err, PB_USAGE,
                       "--watch loads the agent into the ranks of a job: it needs a target (-t PID)");
    if (pb_call_option(call, "no-inject"))
        return pb_fail(err, PB_USAGE, "--watch loads the agent, --no-inject forbids that: give one of them");
    int r = pb_diag_turn_on(&call->ask, &call->targets, ret, &n, err);
    if (r == 0 && n == 0)
        pb_ask_note(&call->ask, "nothing is watched: it could be turned on in no process");
    until = pb_now_ns() + pb_call_ms(call, "watch") * PB_NS_PER_MS;
    for (uint64_t now; r == 0 && n && !pb_stop_signal() && (now = pb_now_ns()) < until;)
        pb_sleep_ns(until - now < PB_NS_PER_S ? until - now : PB_NS_PER_S);
    return r == 0 && pb_stop_signal() ? PB_STOPPED(pb_stop_signal()) : r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *kind = pb_call_option(call, "explain");
    struct pb_diag_turned_on *on = NULL;
    struct pb_diag_request request = {.targets = &call->targets,
                                      .rules = pb_tool_setting_get(PB_TOOL_DIAGNOSE_RULES),
                                      .recorded = !pb_call_option(call, "no-inject"),
                                      .since = pb_call_ms(call, "since") / 1e3,
                                      .patient = true};

    if (kind || pb_call_option(call, "rules"))
        return show_rules(call, request.rules, kind, err);
    if (pb_call_option(call, "facts"))
        return pb_diagnose_part(&call->ask, &request, stdout, err);
    bool watched = pb_call_option(call, "watch");
    if (pb_call_option(call, "every") && watched)
        return pb_fail(err, PB_USAGE, "--watch looks once and --every again and again: give one of them");
    const char *folder = pb_call_option(call, "bundle");
    if (folder && !pb_call_option(call, "every"))
        return pb_fail(err, PB_USAGE,
                       "--bundle goes with --every (a file of now: probing -t PID --all bundle)");
    if (folder && access(folder, W_OK) < 0)
        return pb_fail(err, -errno, "no file can be made in %.200s: %s", folder, strerror(errno));
    if (pb_call_option(call, "every"))
        return pb_diagnose_every(call, &request, pb_call_ms(call, "every"), err);
    if (watched)
        pb_stop_begin();
    int r = watched ? watch(call, &on, err) : 0;
    if (r == 0)
        r = diagnose(call, &request, err);
    fflush(stdout);
    pb_diag_turn_back(&call->ask, on);
    if (watched)
        pb_stop_end();
    return r;
}

static const struct pb_option options[] = {
    {0, "watch", PB_TIME(.least = 1000),
     "turn on what is needed (agent, torch probe, samples of allocations), look after that time, and turn it "
     "off"},
    {0, "every", PB_TIME(.least = 1000),
     "repeat; print a line for each new finding and for each that is over, keep it, and post it to "
     "probing.alert.webhook"},
    {0, "bundle", PB_TEXT("DIR"),
     "with --every: for each new finding an incident's file in this folder; the newest ten stay"},
    {0, "since", PB_TIME(.least = 1000), "use only recorded rows that are not older, such as 10m"},
    {0, "no-inject", NULL, "look from outside only, and use no recorded rows"},
    {0, "json", NULL, "the findings and their evidence as JSON"},
    {0, "facts", NULL, "print what is seen of the job as data: what -t cluster asks of each node"},
    {0, "explain", PB_TEXT("KIND"), "print the rules that find this kind"},
    {0, "rules", NULL, "list all rules, each with its question"},
    {0},
};

static const struct pb_printed_parts printed = {"findings.txt", "findings.json", " json ", .finding = true};

const struct pb_command pb_cmd_diagnose = {
    .name = "diagnose",
    .summary = "what is wrong with a job, whose fault it is, and at which line",
    .synopsis = "",
    .text = "Without a target, diagnoses every job of this machine. The ranks of a job are found "
            "by the environment that their launcher set; a target stands for its whole job.\n\n"
            "Looks at all processes of the job twice, a second apart, from outside: no agent is "
            "needed, and nothing is changed. A wait that may still end is looked at again until it "
            "has lasted five seconds. Rows that agents have recorded count too; --watch makes them "
            "record for a while.\n\n"
            "Exit status: 0 nothing was found, 10 a finding, 3 nothing was found and a process did "
            "not answer.",
    .example = "probing diagnose\nprobing -t train.py diagnose\nprobing diagnose --explain deadlock\n"
               "probing -t train.py diagnose --watch 30s",
    .options = options,
    .printed = &printed,
    .flags = PB_CMD_INCIDENT | PB_CMD_MAY_TARGET | PB_CMD_DEAD | PB_CMD_TOGETHER | PB_CMD_LABELS |
             PB_CMD_JOB | PB_CMD_CLUSTER,
    .run = run,
    .run_over = pb_cluster_diagnose,
};
