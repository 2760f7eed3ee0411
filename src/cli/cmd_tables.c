/* tables: what a process has recorded, live or left behind. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/parts.h"
#include "cli/rows.h"
#include "cli/targets.h"
#include "remote/runs.h"
#include "table/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const columns[] = {"target", "table", "rows",    "bytes",
                                      "first",  "last",  "dropped", "columns"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static int open_dead(pid_t pid, struct pb_err *err)
{
    _cleanup_(pb_runs_done) struct pb_runs runs = {0};

    int r = pb_runs_scan(&runs, err);
    for (size_t i = 0; r == 0 && i < runs.n; i++)
        if (runs.at[i].pid == pid && !runs.at[i].alive)
            return pb_run_open_arena(&runs.at[i], err);
    return r < 0 ? r : pb_fail(err, -ENOENT, "process %d left nothing behind", (int)pid);
}

static int open_arena(const struct pb_call *call, const struct pb_target *target, struct pb_err *err)
{
    struct pb_session session;

    if (target->dead)
        return open_dead(target->pid, err);
    int r = pb_parts_session(target->pid, false, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    pb_session_done(&session);
    return pb_session_open_arena(target->pid, err);
}

/* UTC, as SQL writes it. */
static void add_time(struct pb_rows *rows, int64_t ns)
{
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm tm;
    char text[48], whole[32];

    if (ns == 0) {
        pb_rows_text(rows, NULL);
        return;
    }
    strftime(whole, sizeof(whole), "%Y-%m-%d %H:%M:%S", gmtime_r(&seconds, &tm));
    snprintf(text, sizeof(text), "%s.%03d", whole, (int)(ns / 1000000 % 1000));
    pb_rows_text(rows, text);
}

static void add_columns(struct pb_rows *rows, const struct pb_table_info *table)
{
    char text[2048] = "";
    size_t len = 0;

    for (unsigned i = 0; i < table->ncolumns && len + 1 < sizeof(text); i++)
        len +=
            (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? ", " : "", table->columns[i].name);
    pb_rows_text(rows, text);
}

static int add_table(struct pb_rows *rows, const char *label, struct pb_reader *reader, unsigned i)
{
    struct pb_table_info table;
    struct pb_table_stats stats;

    int r = pb_reader_table(reader, i, &table);
    if (r == 0)
        r = pb_reader_stats(reader, i, &stats);
    if (r < 0)
        return r;
    pb_rows_text(rows, label);
    pb_rows_text(rows, table.name);
    pb_rows_number(rows, "%" PRIu64, stats.rows);
    pb_rows_number(rows, "%" PRIu64, stats.bytes);
    add_time(rows, stats.first);
    add_time(rows, stats.last);
    pb_rows_number(rows, "%" PRIu64, table.dropped);
    add_columns(rows, &table);
    return 0;
}

static int add_target(const struct pb_call *call, const struct pb_target *target, struct pb_rows *rows,
                      struct pb_err *err)
{
    char why[PB_WHY_SIZE];
    struct pb_reader *reader;

    _cleanup_close_ int fd = open_arena(call, target, err);
    if (fd < 0)
        return fd;
    int r = pb_reader_open(fd, &reader, why);
    if (r < 0)
        return pb_fail(err, r, "the tables of process %d cannot be read: %s", (int)target->pid, why);
    for (unsigned i = 0; r == 0 && i < pb_reader_ntables(reader); i++)
        r = add_table(rows, target->label, reader, i);
    pb_reader_close(reader);
    return r < 0 ? pb_fail(err, r, "a table of process %d cannot be read: %s", (int)target->pid, strerror(-r))
                 : 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_rows rows;
    int failed = 0;

    pb_rows_init(&rows, columns, COLUMNS);
    for (size_t i = 0; i < call->targets.n; i++) {
        int r = add_target(call, &call->targets.at[i], &rows, err);
        if (r < 0)
            failed = pb_target_failed(call, &call->targets.at[i], r, err);
    }
    int r = failed && call->targets.n == 1 ? failed : pb_rows_print(&rows, call->format, "no tables", err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_tables = {
    .name = "tables",
    .summary = "the tables of a process: columns, rows, bytes, time range",
    .synopsis = "",
    .text = "Works on a process that has ended as well, by its old pid, from what it left. Times are UTC.",
    .example = "probing -t 4711 tables\nprobing -t 4711 tables --format json",
    .flags = PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS,
    .run = run,
};
