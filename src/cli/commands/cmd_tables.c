/* tables: the tables that a process has recorded, also after it has ended, with their columns in SQL. */
#include "ask/parts.h"
#include "ask/query.h"
#include "ask/sources.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/print/rows.h"
#include "engine/shared/cells.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const columns[] = {"target", "table", "rows",    "bytes",
                                      "first",  "last",  "dropped", "columns"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* The columns but the first. Times are UTC, in milliseconds. */
static const char sql[] =
    "SELECT t.name, t.rows, t.bytes, strftime(t.first, '%Y-%m-%d %H:%M:%S.%g'),"
    " strftime(t.last, '%Y-%m-%d %H:%M:%S.%g'), t.dropped, c.columns"
    " FROM probing.tables t LEFT JOIN (SELECT CASE schema_name WHEN 'main' THEN '' ELSE schema_name || '.' "
    "END"
    " || table_name AS name, string_agg(column_name, ', ' ORDER BY column_index) AS columns"
    " FROM duckdb_columns() WHERE database_name = 'memory' GROUP BY 1) c USING (name)"
    " WHERE t.kind = 'recorded' AND t.bytes > 0 ORDER BY t.name";

static bool is_number(size_t column)
{
    return strcmp(columns[column], "rows") == 0 || strcmp(columns[column], "bytes") == 0 ||
           strcmp(columns[column], "dropped") == 0;
}

static int add_rows(struct pb_rows *rows, const char *label, const struct pb_batch *batch)
{
    _cleanup_(pb_row_text_done) struct pb_row_text row = {0};
    int r = batch->ncolumns == COLUMNS - 1 ? 0 : -EBADMSG;

    for (uint32_t i = 0; r == 0 && i < batch->nrows; i++) {
        r = pb_row_text_take(&row, batch, i);
        if (r < 0)
            break;
        pb_rows_text(rows, label);
        for (size_t k = 1; k < COLUMNS; k++) {
            const struct pb_sql_cell *cell = &row.cells[k - 1];
            _cleanup_free_ char *text = cell->kind == PB_SQL_NULL ? NULL : strndup(cell->text, cell->length);
            if (text && is_number(k))
                pb_rows_number(rows, "%s", text);
            else
                pb_rows_text(rows, text);
        }
    }
    return r;
}

static int add_target(const struct pb_call *call, const struct pb_target *target, struct pb_rows *rows,
                      struct pb_err *err)
{
    const struct pb_query_request request = {
        .sql = sql, .length = sizeof(sql) - 1, .timeout_ms = call->timeout_ms};
    struct pb_target copy = *target;
    struct pb_sql_event event;
    struct pb_query *query;

    int r = pb_query_open(&call->ask, &(struct pb_targets){.at = &copy, .n = 1}, &request, &query, err);
    if (r < 0)
        return r;
    while ((r = pb_query_next(query, &event, err)) > 0)
        if (event.kind == PB_SQL_EVENT_BATCH && (r = add_rows(rows, target->label, &event.batch)) < 0)
            break;
    pb_query_close(query);
    return r;
}

/* Whether something can be read of the process as it is. */
static bool has_tables(const struct pb_call *call, const struct pb_target *target)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    struct pb_target copy = *target;
    struct pb_ask quiet = call->ask;
    struct pb_err err;

    quiet.note = NULL;
    return pb_sources_open(&quiet, &(struct pb_targets){.at = &copy, .n = 1}, &sources, &err) == 0 &&
           (sources.at[0].live.arena_fd >= 0 || sources.at[0].live.nmore > 0);
}

/* Injects into a live process that has no tables yet. Of an ended or detached process, reads the tables
 * that it left. */
static int open_bare(const struct pb_call *call, struct pb_targets *ret_bare,
                     struct pb_parts_session **ret_sessions, struct pb_err *err)
{
    struct pb_targets bare = {.at = calloc(call->targets.n + 1, sizeof(*bare.at))};

    if (!bare.at)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < call->targets.n; i++)
        if (!call->targets.at[i].dead && !has_tables(call, &call->targets.at[i]))
            bare.at[bare.n++] = call->targets.at[i];
    int r = pb_parts_sessions(&call->ask, &bare, false, call->timeout_ms, ret_sessions, err);
    if (r < 0)
        free(bare.at);
    else
        *ret_bare = bare;
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_parts_session *sessions = NULL;
    struct pb_targets bare = {0};
    struct pb_rows rows;
    int failed = 0;

    int r = open_bare(call, &bare, &sessions, err);
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, COLUMNS);
    for (size_t i = 0, k = 0; i < call->targets.n; i++) {
        const struct pb_target *target = &call->targets.at[i];
        struct pb_parts_session *opened =
            k < bare.n && bare.at[k].pid == target->pid && !target->dead ? &sessions[k++] : NULL;
        r = opened && opened->result < 0
                ? pb_fail(err, opened->result, "%s", pb_err_text(&opened->err, opened->result))
                : add_target(call, target, &rows, err);
        if (r < 0)
            failed = pb_target_failed(call, target, r, err);
    }
    pb_parts_sessions_done(sessions, bare.n);
    free(bare.at);
    r = failed && call->targets.n == 1 ? failed : pb_rows_print(&rows, call->format, "no tables", err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_tables = {
    .name = "tables",
    .summary = "the tables of a process: columns, rows, bytes, time range",
    .synopsis = "",
    .text = "Includes what the agent recorded, what `record` recorded of the process, and archived "
            "rows. For a process that has ended, name its old pid or its id (see list). Times are "
            "UTC.",
    .example = "probing -t 4711 tables\nprobing -t 4711 tables --json",
    .flags = PB_CMD_INCIDENT | PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER |
             PB_CMD_TIMEOUT,
    .run = run,
};
