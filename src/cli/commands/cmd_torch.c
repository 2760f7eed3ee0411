/* torch: what a PyTorch job does now: its steps and their phases, its slowest modules, its collectives and
 * its alerts. All of it is SQL over the rows of the torch probe (docs/torch.md). */
#include "ask/step_lines.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/profile/torch_profile.h"
#include "cli/query/query_run.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"
#include "diagnose/headline.h"
#include "engine/shared/sql_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 30000 };

/* The marks {rank,}, {by rank}, ... are left out or replaced for a single process. */
#define LAST_STEPS                                                                                           \
    "WITH last AS (SELECT * FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval'"                       \
    " QUALIFY row_number() OVER ({over rank} ORDER BY timestamp DESC) <= 200)"
#define TRAIN_STEPS                                                                                          \
    "WITH last AS (SELECT * FROM python.torch_step WHERE coalesce(kind, 'train') = 'train'"                  \
    " QUALIFY row_number() OVER ({over rank} ORDER BY timestamp DESC) <= 200)"
#define TIMES                                                                                                \
    "max(step) AS step, count(*) AS steps, round(median(duration_ms), 3) AS step_ms,"                        \
    " round(quantile_cont(duration_ms, 0.95), 3) AS p95_ms,"
#define PHASES                                                                                               \
    " round(100 * sum(data_ms) / sum(duration_ms), 1) AS \"data %\","                                        \
    " round(100 * sum(forward_ms) / sum(duration_ms), 1) AS \"forward %\","                                  \
    " round(100 * sum(backward_ms) / sum(duration_ms), 1) AS \"backward %\","                                \
    " round(100 * sum(optimizer_ms) / sum(duration_ms), 1) AS \"optimizer %\","                              \
    " round(100 * CASE WHEN count(*) > 0 THEN greatest(0, 1 - sum(data_ms + forward_ms + backward_ms"        \
    " + optimizer_ms) / sum(duration_ms)) END, 1) AS \"own code %\","
#define RATES                                                                                                \
    " round(sum(samples) / sum(duration_ms) * 1000, 1) AS \"samples/s\","                                    \
    " round(sum(tokens) / sum(duration_ms) * 1000, 1) AS \"tokens/s\","                                      \
    " round(max(memory_mb), 1) AS memory_mb FROM last {by rank}"

/* One wide table for programs; a screen of 80 columns needs two. */
static const char steps[] = LAST_STEPS " SELECT {rank,}" TIMES PHASES RATES;
static const char rates[] = TRAIN_STEPS " SELECT {rank,}" TIMES RATES "{if any}";

/* The phases and the program's own code add up to the step. Collectives run beside them, mostly during the
 * backward: they are a statement of their own. */
static const char split[] = TRAIN_STEPS " SELECT {rank,}" PHASES "{own line} FROM last {by rank}{if any}";

/* What is called without a training: requests of a server, say. Calls of several threads overlap. */
static const char calls[] =
    "WITH last AS (SELECT * FROM python.torch_step WHERE kind = 'call'"
    " QUALIFY row_number() OVER (PARTITION BY {rank,}thread_id ORDER BY timestamp DESC) <= 1000)"
    " SELECT {rank,}thread_id AS thread, count(*) AS calls, round(median(duration_ms), 3) AS p50_ms,"
    " round(quantile_cont(duration_ms, 0.99), 3) AS p99_ms, max(in_flight) + 1 AS \"most at once\","
    " round(sum(samples) / nullif(epoch(max(timestamp) - min(timestamp)), 0), 1) AS \"samples/s\","
    " max(timestamp) AS last FROM last GROUP BY ALL ORDER BY calls DESC LIMIT 16";

static const char evaluations[] =
    "SELECT {rank,}count(*) AS \"calls in evaluations\", round(median(duration_ms), 3) AS call_ms,"
    " round(sum(samples) / sum(duration_ms) * 1000, 1) AS \"samples/s\", max(timestamp) AS last"
    " FROM python.torch_step WHERE kind = 'eval' {by rank}{if any}";

/* What a rank spends in collectives beyond the rank that spends least, it waits for others at least. */
static const char waits[] = LAST_STEPS
    ", parts AS (SELECT {rank,}duration_ms, 0 AS collective_ms FROM last UNION ALL SELECT {rank,}0, "
    "duration_ms"
    " FROM python.comm_collective WHERE duration_ms IS NOT NULL"
    " AND timestamp >= (SELECT min(timestamp) FROM last)),"
    " sums AS (SELECT {rank,}sum(collective_ms) AS c, sum(duration_ms) AS d FROM parts {by rank})"
    " SELECT {rank,}round(100 * c / d, 1) AS \"in collectives, beside the phases %\"{waiting} FROM sums"
    " WHERE c > 0";

/* Shares are of the time of those steps of the last minute that recorded modules. With collectives a backward
 * as a whole is left out: it has the time in which a rank waits for a slower one, and would make the ranks
 * that wait the slow ones. */
static const char modules[] =
    "WITH edge AS (SELECT max(timestamp) - INTERVAL 1 MINUTE AS t FROM python.torch_step),"
    " whole AS (SELECT {rank,}sum(duration_ms) AS ms FROM python.torch_step, edge WHERE sampled"
    " AND timestamp > edge.t {by rank}),"
    " last AS (SELECT * FROM python.torch_trace, edge WHERE timestamp > edge.t"
    " AND (stage IN ('forward', 'eval', 'recompute') OR depth = 0) AND stage <> 'step'"
    " AND NOT (stage = 'backward' AND EXISTS (FROM python.comm_collective)))"
    " SELECT {rank,}stage, module, module_type, count(*) AS calls, round(avg(duration_ms), 4) AS "
    "avg_ms,"
    " round(avg(self_ms), 4) AS self_ms, round(100 * sum(self_ms) / any_value(ms), 1) AS \"of steps %\""
    " FROM last {join rank} GROUP BY {rank,}stage, module, module_type ORDER BY sum(self_ms) DESC LIMIT 12";

static const char collectives[] =
    "SELECT {rank,}op, count(*) AS calls, round(sum(bytes) / 1048576.0, 3) AS mb,"
    " round(avg(duration_ms), 3) AS avg_ms, round(max(duration_ms), 3) AS max_ms,"
    " count(*) FILTER (WHERE done IS NULL AND end_unknown IS NOT TRUE) AS open,"
    " count(*) FILTER (WHERE end_unknown) AS \"end unknown\" FROM python.comm_collective"
    " WHERE timestamp > now() - INTERVAL 1 MINUTE OR state <> 'completed' GROUP BY ALL ORDER BY calls DESC "
    "LIMIT 8";

static const char alerts[] = "SELECT {rank,}timestamp, severity, kind, message FROM python.alerts"
                             " ORDER BY timestamp DESC LIMIT 5";

/* A call begins before the calls inside it: ordered by first call, the modules form the tree. */
static const char tree[] =
    "WITH calls AS (SELECT {rank,}model, module, module_type, parent, depth, count(*) AS calls,"
    " avg(duration_ms) AS avg_ms, avg(self_ms) AS self_ms, sum(self_ms) AS total, min(timestamp) AS first"
    " FROM python.torch_trace WHERE stage = 'forward' GROUP BY ALL)"
    " SELECT {rank,}repeat('  ', depth) || CASE WHEN starts_with(module, parent || '.')"
    " THEN module[length(parent) + 2:] ELSE module END AS module, module_type, calls,"
    " round(avg_ms, 4) AS avg_ms, round(self_ms, 4) AS self_ms,"
    " round(100 * total / sum(total) OVER (PARTITION BY {rank,}model), 1) AS \"self %\""
    " FROM calls ORDER BY {rank,}first, depth";

/* Of how many the rows are, and what tells them apart: processes that have no rank are told apart by pid. */
enum rows_of { ONE, RANKS, PROCESSES };
#define WAITING ", round(100 * (c - min(c) OVER ()) / d, 1) AS \"waits for other ranks at least %\""

static const struct {
    const char *mark, *of[PROCESSES + 1];
} marks[] = {
    {"{rank,}", {"", "rank, ", "rank, target_pid, "}},
    {"{by rank}", {"", "GROUP BY rank ORDER BY rank", "GROUP BY rank, target_pid ORDER BY rank, target_pid"}},
    {"{over rank}", {"", "PARTITION BY rank", "PARTITION BY rank, target_pid"}},
    {"{join rank}",
     {", whole", "JOIN whole USING (rank)",
      "JOIN (SELECT target_pid, ms FROM whole) AS whole USING (target_pid)"}},
    {"{waiting}", {"", WAITING, WAITING}},
    {"{if any}", {" HAVING count(*) > 0", "", ""}},
    {"{own line}", {NULL, NULL, NULL}}, /* of put_own_line */
};
#define MARKS (sizeof(marks) / sizeof(marks[0]))

/* A column that names the line of the program's own code that takes most time, where it was found. */
static void put_own_line(FILE *to, const struct pb_own_code *own)
{
    _cleanup_free_ char *text = NULL;

    if (!own || asprintf(&text, "%s (%s:%d)", own->function, own->file, own->line) < 0)
        return;
    fputc(' ', to);
    pb_put_quoted(to, text, '\'');
    fputs(" AS \"own code: hottest line\"", to);
}

/* Writes a statement, with its marks filled in. own: NULL: not known. */
static void put_statement(FILE *to, const char *statement, enum rows_of of, const struct pb_own_code *own)
{
    while (*statement) {
        size_t i = 0;
        while (i < MARKS && strncmp(statement, marks[i].mark, strlen(marks[i].mark)) != 0)
            i++;
        if (i == MARKS) {
            putc(*statement++, to);
            continue;
        }
        if (marks[i].of[of])
            fputs(marks[i].of[of], to);
        else
            put_own_line(to, own);
        statement += strlen(marks[i].mark);
    }
}

/* What diagnose says of the job, as a table of its own, with the moment: on a terminal the other tables go
 * on. */
static void put_diagnosis(FILE *to, const struct pb_call *call)
{
    struct pb_headlines headlines;
    struct pb_err ignored = {0};
    char at[32];
    time_t now = time(NULL);
    struct tm tm;

    if (pb_headlines_ask(&call->ask, &call->targets, true, &headlines, &ignored) < 0)
        return;
    strftime(at, sizeof(at), "%H:%M:%S", localtime_r(&now, &tm));
    for (size_t i = 0; i < headlines.njobs; i++) {
        fputs("SELECT ", to);
        pb_put_quoted(to, headlines.jobs[i], '\'');
        fprintf(to, " AS \"what is wrong, at %s\"; ", at);
    }
    pb_headlines_done(&headlines);
}

/* All statements to run, on the heap. call: whose job is judged too; NULL: none. NULL: out of memory. */
static char *make_sql(const struct pb_call *call, bool as_tree, bool as_table, enum rows_of of,
                      const struct pb_own_code *own)
{
    const char *const summary[] = {rates, split, waits, calls, evaluations, modules, collectives, alerts};
    char *sql = NULL;
    size_t size;

    FILE *to = open_memstream(&sql, &size);
    if (!to)
        return NULL;
    if (as_tree)
        put_statement(to, tree, of, NULL);
    if (call)
        put_diagnosis(to, call);
    if (!as_tree && !as_table) /* csv, json and tsv hold one table: the steps */
        put_statement(to, steps, of, NULL);
    for (size_t i = 0; !as_tree && as_table && i < sizeof(summary) / sizeof(summary[0]); i++) {
        fputs(i ? "; " : "", to);
        put_statement(to, summary[i], of, own);
    }
    return fclose(to) == 0 ? sql : NULL;
}

static enum rows_of rows_of(const struct pb_targets *targets)
{
    for (size_t i = 0; targets->n > 1 && i < targets->n; i++)
        if (targets->at[i].labelled_by == PB_LABEL_BY_PID)
            return PROCESSES;
    return targets->n > 1 ? RANKS : ONE;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    bool as_tree = call->nargs && strcmp(call->args[0], "tree") == 0;
    struct pb_query_options o = {
        .timeout_ms = TIMEOUT_MS,
        .watch_ms = pb_call_ms(call, "interval"),
        .print = {.if_empty = "nothing is recorded yet: config probing.torch.profiling=on begins it"}};

    if (call->nargs && strcmp(call->args[0], "profile") == 0)
        return pb_torch_profile(call, err);
    if (call->nargs && !as_tree)
        return pb_fail(err, PB_USAGE, "'%.40s' is not known here; there are tree and profile", call->args[0]);
    o.format = call->format == PB_FORMAT_JSON  ? PB_QUERY_JSON
               : call->format == PB_FORMAT_CSV ? PB_QUERY_CSV
               : call->format == PB_FORMAT_TSV ? PB_QUERY_TSV
                                               : PB_QUERY_TABLE;
    bool live =
        !as_tree && o.format == PB_QUERY_TABLE && isatty(STDOUT_FILENO) && !pb_call_option(call, "once");
    struct pb_own_code own;
    enum rows_of of = rows_of(&call->targets);
    bool known = !as_tree && o.format == PB_QUERY_TABLE && of == ONE && !call->targets.at[0].dead &&
                 pb_own_code_ask(&call->ask, &call->targets.at[0], PB_OWN_OUTSIDE, &own, err) == 0;
    err->text[0] = '\0';
    bool judged = !as_tree && o.format == PB_QUERY_TABLE && !call->targets.at[0].dead;
    char *sql = make_sql(judged ? call : NULL, as_tree, o.format == PB_QUERY_TABLE, of, known ? &own : NULL);
    if (!sql)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = live ? pb_query_watch(call, &o, sql, strlen(sql), err)
                 : pb_query_run(call, &o, sql, strlen(sql), stdout, err);
    free(sql);
    return r;
}

static int run_over(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err)
{
    if (call->nargs && strcmp(call->args[0], "profile") == 0)
        return pb_fail(err, PB_USAGE,
                       "over a cluster there is no torch profile: its ranks are those of one node "
                       "(-t TARGET --all torch profile)");
    return pb_cluster_each(call, c, s, 0, false, err);
}

static const struct pb_option options[] = {
    {0, "interval", PB_TIME(.least = 100, .usual = 1000),
     "time between two refreshes on a terminal (default 1s)"},
    {0, "once", NULL, "print it once, also on a terminal"},
    {0, "steps", PB_COUNT("N", .least = 1, .most = 100, .usual = 3),
     "profile: how many whole steps (default 3, at most 100)"},
    {'o', "output", PB_TEXT("FILE"),
     "profile: where the trace goes; of several ranks with the rank in its name"},
    {0, "within", PB_TIME(.least = 1000, .most = 500000000, .usual = 60000),
     "profile: give up if the steps take longer (default 1m)"},
    {0},
};

const struct pb_command pb_cmd_torch = {
    .name = "torch",
    .summary = "what a PyTorch job does: steps, phases, slowest modules, collectives, alerts",
    .synopsis = "[tree | profile]",
    .text = "Shows, from top to bottom:\n"
            "  what `diagnose` finds in the job\n"
            "  the last 200 steps, split into data loading, forward, backward, optimizer and the "
            "program's own code, with the line of that code that takes most (sampled from outside "
            "for a second)\n"
            "  time in collectives, which run beside the phases; over several ranks, how long each "
            "waits for others\n"
            "  the slowest modules of the last minute by their own time, collectives, alerts\n\n"
            "On a terminal it refreshes in place until q. tree shows the modules of each model "
            "with their times. profile runs torch.profiler for a few whole steps, the same steps "
            "on all ranks; the file opens in Perfetto, and its operators are rows of "
            "python.profile_hotspot. --json, csv and tsv give the steps alone.\n\n"
            "Only what is recorded can be shown: `config probing.torch.profiling=on` starts "
            "recording.",
    .example = "probing -t 4711 config probing.torch.profiling=on\nprobing -t 4711 torch\nprobing -t 4711 "
               "torch tree\n"
               "probing -t train.py --all torch --once\n"
               "probing -t train.py --all torch profile --steps 3 -o trace.json",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_INCIDENT | PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER,
    .run = run,
    .run_over = run_over,
};
