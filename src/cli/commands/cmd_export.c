/* export: a table, or a time range of it, as a file for other programs. */
#include "base/err.h"
#include "cli/cli.h"
#include "cli/query/query_run.h"
#include "cli/ranks/ranks.h"
#include "cli/values.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { TIMEOUT_MS = 600000, NAME_MAX_LENGTH = 127 };

/* "schema.name" or "name" of letters, digits and underscores: it is pasted into SQL. */
static bool is_table_name(const char *name)
{
    int dots = 0;

    for (const char *p = name; *p; p++) {
        dots += *p == '.';
        if (!isalnum((unsigned char)*p) && *p != '_' && *p != '.')
            return false;
    }
    return *name && dots <= 1 && strlen(name) <= NAME_MAX_LENGTH;
}

/* Appends a condition on the time column: "5m" is back from now, otherwise a time in UTC as in SQL. */
static int add_bound(char *sql, size_t size, const char *comparison, const char *value, struct pb_err *err)
{
    size_t n = strlen(sql);
    unsigned ms;

    if (!value)
        return 0;
    const char *joint = strstr(sql, " WHERE ") ? "AND" : "WHERE";
    if (pb_parse_duration(value, &ms) == 0) {
        snprintf(sql + n, size - n, " %s timestamp %s now() - INTERVAL '%u milliseconds'", joint, comparison,
                 ms);
        return 0;
    }
    if (strlen(value) > 40 || value[strspn(value, "0123456789-:. T")])
        return pb_fail(err, PB_USAGE,
                       "a time is 5m, 2h (back from now) or '2026-01-31 12:00:00' (UTC), not '%s'", value);
    snprintf(sql + n, size - n, " %s timestamp %s TIMESTAMP '%s'", joint, comparison, value);
    return 0;
}

/* c: over its ranks; NULL: over the call's targets. */
static int write_table(const struct pb_call *call, const struct pb_cluster *c,
                       const struct pb_selection *selection, struct pb_err *err)
{
    const char *output = pb_call_option(call, "output"), *format = pb_call_option(call, "format");
    struct pb_query_options o = {.output = output,
                                 .timeout_ms = TIMEOUT_MS,
                                 .strict = pb_call_option(call, "strict"),
                                 .cluster = c,
                                 .selection = selection};
    char sql[1024];

    if (!c && !call->targets.n && !pb_call_option(call, "archive"))
        return pb_fail(err, PB_USAGE,
                       "which process? (-t PID, or --archive DIR for all that is archived there)");
    if (!output)
        return pb_fail(err, PB_USAGE, "where to? (-o FILE.parquet or -o FILE.csv)");
    o.format = pb_query_format_of(output);
    if (format)
        pb_query_format(format, &o.format);
    if (!is_table_name(call->args[0]))
        return pb_fail(err, PB_USAGE,
                       "'%s' is no name of a table (probing -t PID query \"FROM probing.tables\" lists them)",
                       call->args[0]);
    snprintf(sql, sizeof(sql), "SELECT * FROM %s", call->args[0]);
    int r = add_bound(sql, sizeof(sql), ">=", pb_call_option(call, "since"), err);
    if (r == 0)
        r = add_bound(sql, sizeof(sql), "<", pb_call_option(call, "until"), err);
    return r < 0 ? r : pb_query_run_to_file(call, &o, sql, strlen(sql), err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    return write_table(call, NULL, NULL, err);
}

static int run_over(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *selection,
                    struct pb_err *err)
{
    if (pb_call_option(call, "archive"))
        return pb_fail(err, PB_USAGE, "an archive is read without the cluster: probing export --archive DIR");
    return write_table(call, c, selection, err);
}

static const struct pb_option options[] = {
    {'o', "output", PB_TEXT("FILE"), "the file, replaced whole or not at all; its ending selects the format"},
    {0, "format", PB_CHOICE("FORMAT", "parquet arrow csv tsv json jsonl markdown"),
     "parquet, arrow, csv, tsv, json, jsonl or markdown"},
    {0, "since", PB_TEXT("TIME"),
     "rows from then on: 5m or 2h back from now, or '2026-01-31 12:00:00' (UTC)"},
    {0, "until", PB_TEXT("TIME"), "rows before then"},
    {0, "strict", NULL, "fail, and write nothing, if something of a process could not be read"},
    {0, "archive", PB_TEXT("DIR"),
     "read archived rows from DIR (default: PROBING_ARCHIVE, see archive); none: read none"},
    {0},
};

const struct pb_command pb_cmd_export = {
    .name = "export",
    .summary = "a table as a Parquet or CSV file",
    .synopsis = "TABLE -o FILE",
    .text = "Exports any table that query knows: live, recorded or archived, of a running process "
            "or of one that has ended. With --archive no process is needed: it exports the table "
            "of every run in that archive.",
    .example = "probing -t 4711 export memory_usage -o memory.parquet\n"
               "  probing -t 4711 export python.torch_trace --since 10m -o trace.csv",
    .options = options,
    .min_args = 1,
    .max_args = 1,
    .flags = PB_CMD_INCIDENT | PB_CMD_CLUSTER | PB_CMD_BYTES | PB_CMD_SERVED | PB_CMD_MAY_TARGET |
             PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER,
    .run = run,
    .run_over = run_over,
};
