/* report: one HTML file for a ticket: what a process runs, its stacks, its steps, its alerts. No script,
 * nothing fetched: it opens offline, in light and dark. All contents come from SQL, whose tables mask
 * secrets; every text of the process is escaped here. */
#include "ask/process_settings.h"
#include "ask/query.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/replace.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "diagnose/diagnose.h"
#include "engine/shared/cells.h"
#include "print/glyph.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIMEOUT_MS = 20000, POINTS = 400, WIDE = 900, HIGH = 120, TEXT_MAX = 2000 };

static const char style[] =
    ":root { color-scheme: light dark; --line: #d5dae0; --soft: #656d76; --mark: #0969da; --bad: #b35900; }\n"
    "body { margin: 24px auto; max-width: 1100px; padding: 0 16px; background: #ffffff; color: #1f2328;\n"
    "  font: 14px system-ui, sans-serif; }\n"
    "h1 { font-size: 20px; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 28px 0 8px; }\n"
    "table { border-collapse: collapse; width: 100%; }\n"
    "th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); }\n"
    "th, td { padding: 3px 14px 3px 0; vertical-align: top; overflow-wrap: anywhere; }\n"
    "td { border-bottom: 1px solid var(--line); font: 12px ui-monospace, Menlo, Consolas, monospace; }\n"
    "p { color: var(--soft); } .bad { color: var(--bad); }\n"
    "svg { width: 100%; height: auto; } polyline { fill: none; stroke: var(--mark); stroke-width: 1.5; }\n"
    "text { fill: var(--soft); font: 11px sans-serif; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  :root { --line: #3d454f; --soft: #99a3ae; --mark: #58a6ff; --bad: #e3a35c; }\n"
    "  body { background: #14171c; color: #e6edf3; } }\n";

enum section_kind { ROWS, ONE_ROW, CHART };

static const struct section {
    const char *title, *none, *sql;
    enum section_kind kind;
} sections[] = {
    {"What it runs", "The process has ended.",
     "SELECT command, exe, cwd, state, python, started, threads, round(rss_bytes / 1048576, 1) AS rss_mb,"
     " round(peak_rss_bytes / 1048576, 1) AS peak_mb, cpu_user_s, cpu_system_s FROM system.process",
     ONE_ROW},
    {"Alerts", "None.",
     "SELECT timestamp, severity, kind, message FROM python.alerts ORDER BY timestamp DESC LIMIT 30", ROWS},
    {"Stacks", "No Python thread could be read.",
     "SELECT thread, depth, func, file || ':' || lineno AS place, state FROM python.backtrace"
     " ORDER BY tid, depth LIMIT 600",
     ROWS},
    {"Step times, ms", "No steps were recorded (config probing.torch.profiling=on).",
     "SELECT duration_ms FROM (SELECT timestamp, duration_ms FROM python.torch_step WHERE kind IS DISTINCT "
     "FROM 'eval' ORDER BY timestamp DESC"
     " LIMIT 400) ORDER BY timestamp",
     CHART},
    {"Steps", "None.",
     "WITH last AS (SELECT * FROM python.torch_step WHERE kind IS DISTINCT FROM 'eval' ORDER BY timestamp "
     "DESC LIMIT 400)"
     " SELECT count(*) AS steps, round(median(duration_ms), 3) AS step_ms,"
     " round(quantile_cont(duration_ms, 0.95), 3) AS p95_ms, round(max(duration_ms), 3) AS max_ms,"
     " round(avg(data_ms), 3) AS data_ms, round(avg(forward_ms), 3) AS forward_ms,"
     " round(avg(backward_ms), 3) AS backward_ms, round(avg(optimizer_ms), 3) AS optimizer_ms"
     " FROM last HAVING count(*) > 0",
     ROWS},
    {"Slowest modules", "None were recorded.",
     "SELECT stage, module, module_type, count(*) AS calls, round(avg(duration_ms), 4) AS avg_ms,"
     " round(sum(self_ms), 2) AS self_total_ms FROM python.torch_trace"
     " WHERE timestamp > (SELECT max(timestamp) FROM python.torch_trace) - INTERVAL 1 MINUTE"
     " AND stage <> 'step' AND NOT (stage = 'backward' AND EXISTS (FROM python.comm_collective))"
     " GROUP BY ALL ORDER BY sum(self_ms) DESC LIMIT 20",
     ROWS},
    {"Collectives that are not over", "None.",
     "SELECT timestamp, op, bytes, location FROM python.comm_collective WHERE state <> 'completed' ORDER BY 1"
     " LIMIT 20",
     ROWS},
    {"Memory, MB", "None was recorded.",
     "SELECT memory_mb FROM (SELECT timestamp, memory_mb FROM memory_usage ORDER BY timestamp DESC LIMIT 400)"
     " ORDER BY timestamp",
     CHART},
    {"What the agent noted", "Nothing.",
     "SELECT timestamp, source, message FROM probing.log ORDER BY timestamp DESC LIMIT 30", ROWS},
};

/* Escapes a text of the process for HTML; control characters are shown by their number. */
static void put_escaped(FILE *to, const char *text, size_t length)
{
    struct pb_glyph glyph;

    for (size_t i = 0; i < length && i < TEXT_MAX; i += glyph.bytes) {
        pb_glyph_read(text + i, length - i, &glyph);
        for (const char *c = glyph.shown; *c; c++) {
            if (strchr("<>&\"'", *c))
                fprintf(to, "&#%d;", *c);
            else
                putc(*c, to);
        }
    }
    if (length > TEXT_MAX)
        fputs("...", to);
}

struct answer {
    double points[POINTS];
    unsigned npoints, rows;
};

static void put_head(FILE *to, const struct pb_sql_event *event)
{
    fputs("<table><tr>", to);
    for (unsigned i = 0; i < event->n; i++) {
        fputs("<th>", to);
        put_escaped(to, event->columns[i].name, strlen(event->columns[i].name));
    }
    fputs("</tr>\n", to);
}

/* One row, as a line of a table or as a table of names and values. */
static void put_row(FILE *to, const struct pb_sql_event *head, const struct pb_row_text *row, unsigned n,
                    enum section_kind kind)
{
    fputs(kind == ROWS ? "<tr>" : "<table>", to);
    for (unsigned i = 0; i < n; i++) {
        if (kind == ONE_ROW) {
            fputs("<tr><th>", to);
            put_escaped(to, head->columns[i].name, strlen(head->columns[i].name));
        }
        fputs("<td>", to);
        if (row->cells[i].text)
            put_escaped(to, row->cells[i].text, row->cells[i].length);
        if (kind == ONE_ROW)
            fputs("</tr>\n", to);
    }
    fputs(kind == ROWS ? "</tr>\n" : "</table>\n", to);
}

static int take_batch(FILE *to, const struct section *s, const struct pb_sql_event *head,
                      const struct pb_batch *batch, struct answer *a)
{
    _cleanup_(pb_row_text_done) struct pb_row_text row = {0};

    for (uint32_t i = 0; i < batch->nrows; i++) {
        int r = pb_row_text_take(&row, batch, i);
        if (r < 0)
            return r;
        if (s->kind == CHART && a->npoints < POINTS && batch->ncolumns && row.cells[0].text) {
            char number[40];
            snprintf(number, sizeof(number), "%.*s", (int)row.cells[0].length, row.cells[0].text);
            a->points[a->npoints++] = strtod(number, NULL);
        } else if (s->kind != CHART) {
            if (s->kind == ROWS && a->rows == 0)
                put_head(to, head);
            put_row(to, head, &row, batch->ncolumns, s->kind);
        }
        a->rows++;
    }
    return 0;
}

static void put_chart(FILE *to, const struct answer *a)
{
    double most = 0;

    for (unsigned i = 0; i < a->npoints; i++)
        most = a->points[i] > most ? a->points[i] : most;
    fprintf(to, "<svg viewBox=\"0 0 %d %d\" role=\"img\"><polyline points=\"", WIDE, HIGH + 20);
    for (unsigned i = 0; i < a->npoints; i++)
        fprintf(to, "%.1f,%.1f ", a->npoints > 1 ? (double)i * WIDE / (a->npoints - 1) : 0,
                HIGH + 10 - (most > 0 ? a->points[i] / most * HIGH : 0));
    fprintf(to, "\"/><text x=\"4\" y=\"10\">%.6g</text><text x=\"4\" y=\"%d\">0; the last %u</text></svg>\n",
            most, HIGH + 18, a->npoints);
}

/* A section that fails shows its error in its place; the report goes on. */
static int put_section(FILE *to, const struct pb_call *call, const struct section *s, struct pb_err *err)
{
    const struct pb_query_request request = {
        .sql = s->sql, .length = strlen(s->sql), .timeout_ms = TIMEOUT_MS};
    struct pb_sql_event event, head = {0};
    struct answer a = {.npoints = 0};
    struct pb_query *q = NULL;

    fprintf(to, "<h2>%s</h2>\n", s->title);
    int r = pb_query_open(&call->ask, &call->targets, &request, &q, err);
    while (r >= 0 && (r = pb_query_next(q, &event, err)) > 0) {
        if (event.kind == PB_SQL_EVENT_COLUMNS)
            head = event;
        else if (event.kind == PB_SQL_EVENT_BATCH && take_batch(to, s, &head, &event.batch, &a) < 0)
            r = pb_fail(err, -ENOMEM, "out of memory");
    }
    if (s->kind == ROWS && a.rows)
        fputs("</table>\n", to);
    if (s->kind == CHART && a.npoints)
        put_chart(to, &a);
    if (r < 0) {
        fputs("<p class=\"bad\">", to);
        put_escaped(to, err->text, strlen(err->text));
        fputs("</p>\n", to);
    } else if (a.rows == 0) {
        fprintf(to, "<p>%s</p>\n", s->none);
    }
    if (q)
        pb_query_close(q);
    return r;
}

static void put_text(FILE *to, const char *before, const char *text, const char *after)
{
    fputs(before, to);
    put_escaped(to, text, strlen(text));
    fputs(after, to);
}

static void put_finding(FILE *to, const struct pb_diag_finding *f)
{
    put_text(to, "<p class=\"bad\"><b>", f->says, "</b></p>\n");
    if (f->nevidence)
        fputs("<table>\n", to);
    for (size_t i = 0; i < f->nevidence; i++) {
        fputs("<tr>", to);
        for (size_t k = 0; k < PB_DIAG_FIELDS; k++)
            put_text(to, "<td>", f->evidence[i].field[k], "");
        fputs("</tr>\n", to);
    }
    if (f->nevidence)
        fputs("</table>\n", to);
    if (f->why[0])
        put_text(to, "<p>", f->why, "</p>\n");
    if (f->next[0])
        put_text(to, "<p>Next: ", f->next, "</p>\n");
}

/* What diagnose says of the job of this process. */
static void put_diagnosis(FILE *to, const struct pb_call *call, struct pb_err *err)
{
    struct pb_diag_request request = {.targets = &call->targets, .recorded = true, .patient = true};
    struct pb_diagnosis d = {0};
    bool found = false;

    fputs("<h2>What is wrong</h2>\n", to);
    int r = call->targets.at[0].dead ? 0 : pb_diagnose(&call->ask, &request, &d, err);
    for (size_t i = 0; r == 0 && i < d.n; i++)
        for (size_t k = 0; d.at[i].verdict && k < d.at[i].findings.n; k++)
            if (k == 0 || d.at[i].findings.at[k].second) {
                put_finding(to, &d.at[i].findings.at[k]);
                found = true;
            }
    if (r < 0)
        put_text(to, "<p class=\"bad\">", err->text, "</p>\n");
    else if (call->targets.at[0].dead)
        fputs("<p>Not looked for: the process has ended.</p>\n", to);
    else if (!found)
        fputs("<p>No problem was found in its job.</p>\n", to);
    pb_diagnosis_done(&d);
}

static void put_setting(void *arg, const struct pb_shown_setting *setting)
{
    FILE *to = arg;

    fputs("<tr><td>", to);
    put_escaped(to, setting->name, strlen(setting->name));
    fputs("<td>", to);
    put_escaped(to, setting->value ? setting->value : "", setting->value ? strlen(setting->value) : 0);
    fputs("<td>", to);
    put_escaped(to, setting->origin ? setting->origin : "", setting->origin ? strlen(setting->origin) : 0);
    fputs("</tr>\n", to);
}

static void put_report(FILE *to, const struct pb_call *call, struct pb_err *err)
{
    const struct pb_target *target = &call->targets.at[0];
    struct pb_settings *settings = calloc(1, sizeof(*settings));
    time_t now = time(NULL);
    char when[40];
    struct tm tm;

    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", gmtime_r(&now, &tm));
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\">"
          "<meta name=\"viewport\" content=\"width=device-width\"><title>probing: ",
          to);
    put_escaped(to, target->label, strlen(target->label));
    fprintf(to, "</title>\n<style>\n%s</style></head>\n<body>\n<h1>", style);
    put_escaped(to, target->label, strlen(target->label));
    fprintf(to, "</h1>\n<p>Process %d, %s UTC, probing %s. Secrets are masked.</p>\n", (int)target->pid, when,
            PROBING_VERSION);
    put_diagnosis(to, call, err);
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        (void)put_section(to, call, &sections[i], err);
    fputs("<h2>Settings</h2>\n<table><tr><th>setting<th>value<th>from</tr>\n", to);
    if (settings) {
        (void)pb_settings_of(&call->ask, target, settings, err);
        pb_settings_each(settings, put_setting, to);
    }
    fputs("</table>\n</body></html>\n", to);
    free(settings);
}

static int write_report(const struct pb_call *call, const char *path, struct pb_err *err)
{
    struct pb_replace file;

    int r = pb_replace_begin(path, &file);
    if (r == 0) {
        put_report(file.out, call, err);
        r = pb_replace_end(&file, 0);
    }
    if (r < 0)
        return pb_fail(err, r, "%s cannot be written: %s", path, strerror(-r));
    printf("written to %s\n", path);
    return 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    const char *given = pb_call_option(call, "output");
    char path[PATH_MAX];
    int failed = 0;

    if (!given)
        return pb_fail(err, PB_USAGE, "report needs -o FILE.html");
    for (size_t i = 0; i < call->targets.n; i++) {
        struct pb_call one = *call;
        one.targets.at = &call->targets.at[i];
        one.targets.n = 1;
        pb_target_path(one.targets.at, given, call->targets.n, path, sizeof(path));
        int e = write_report(&one, path, err);
        if (e < 0)
            failed = call->targets.n > 1 ? pb_target_failed(call, one.targets.at, e, err) : e;
    }
    return failed;
}

static const struct pb_option options[] = {
    {'o', "output", PB_TEXT("FILE"),
     "where it goes: one HTML file, without scripts, that opens offline; of several processes with the rank "
     "or pid in its name"},
    {0},
};

const struct pb_command pb_cmd_report = {
    .name = "report",
    .summary = "one HTML file for a ticket: what is wrong, stacks, steps, modules, memory, alerts",
    .synopsis = "",
    .text = "One file with what `diagnose` finds, the command line, alerts, all stacks, times of "
            "the last steps, the slowest modules, open collectives, memory and settings. Secrets "
            "are masked; names of functions, files and modules are not.",
    .example = "probing -t 4711 report -o ticket.html",
    .options = options,
    .flags = PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_TOGETHER,
    .run = run,
};
