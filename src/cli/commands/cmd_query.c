/* query: SQL over everything known of a process, live or ended. */
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/query/query_prompt.h"
#include "cli/query/query_run.h"
#include "cli/ranks/ranks.h"
#include "cli/served.h"
#include "cli/values.h"
#include "engine/shared/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_options(const struct pb_call *call, struct pb_query_options *ret, struct pb_err *err)
{
    const char *format = pb_call_option(call, "format"), *watch = pb_call_option(call, "watch");
    struct pb_query_options o = {
        .timeout_ms = pb_call_ms(call, "timeout"),
        .watch_ms = pb_call_ms(call, "watch"),
        .max_rows = (uint64_t)pb_call_number(call, "max-rows"),
        .print = {.expanded = pb_call_option(call, "expanded"), .columns = pb_call_option(call, "columns")},
        .stats = pb_call_option(call, "stats"),
        .strict = pb_call_option(call, "strict"),
        .output = pb_call_option(call, "output")};

    if (format)
        pb_query_format(format, &o.format);
    if (o.output && !format)
        o.format = pb_query_format_of(o.output);
    if (o.print.expanded && o.format != PB_QUERY_TABLE)
        return pb_fail(err, PB_USAGE, "--expanded is a form of the table format alone");
    if (o.print.columns && o.format != PB_QUERY_JSONL)
        return pb_fail(err, PB_USAGE, "--columns goes with --format jsonl alone");
    if (watch && o.output)
        return pb_fail(err, PB_USAGE, "--watch shows rows again and again; they do not go to a file (-o)");
    if (o.format == PB_QUERY_PARQUET && !o.output)
        return pb_fail(err, PB_USAGE, "parquet is a file: -o FILE says which");
    if (o.format == PB_QUERY_ARROW && !o.output && isatty(STDOUT_FILENO))
        return pb_fail(err, PB_USAGE, "arrow is binary, which is nothing for a terminal: -o FILE, or a pipe");
    if (o.format == PB_QUERY_ARROW && watch)
        return pb_fail(err, PB_USAGE, "--watch shows rows to a person; arrow is for programs");
    *ret = o;
    return 0;
}

/* Reads a whole file, up to a little more than the worker accepts. */
static int read_whole_file(FILE *file, const char *name, char **ret, size_t *ret_length, struct pb_err *err)
{
    size_t room = 1 << 16, n = 0;
    char *text = malloc(room);

    while (text && n <= PB_SQL_MAX_TEXT) {
        n += fread(text + n, 1, room - n, file);
        if (n < room)
            break;
        char *more = realloc(text, room *= 2);
        if (!more)
            free(text);
        text = more;
    }
    if (!text || ferror(file)) {
        free(text);
        return pb_fail(err, text ? -EIO : -ENOMEM, "%s cannot be read: %s", name,
                       strerror(text ? errno : ENOMEM));
    }
    *ret = text;
    *ret_length = n;
    return 0;
}

/* The statements: the argument, a file (-f), or standard input. */
static int read_sql(const struct pb_call *call, char **ret, size_t *ret_length, struct pb_err *err)
{
    const char *path = pb_call_option(call, "file");
    bool input = !path && (call->nargs == 0 || strcmp(call->args[0], "-") == 0);

    if (path && call->nargs)
        return pb_fail(err, PB_USAGE, "give the statements or a file, not both");
    if (input && call->nargs == 0 && isatty(STDIN_FILENO))
        return pb_fail(err, PB_USAGE, "which query? (probing -t PID query \"SELECT ...\", or -f FILE)");
    if (!path && !input) {
        *ret = strdup(call->args[0]);
        *ret_length = strlen(call->args[0]);
        return *ret ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    }
    FILE *file = input ? stdin : fopen(path, "re");
    if (!file)
        return pb_fail(err, -errno, "%s cannot be opened: %s", path, strerror(errno));
    int r = read_whole_file(file, input ? "standard input" : path, ret, ret_length, err);
    if (!input)
        fclose(file);
    return r;
}

/* Whether to open a prompt: no SQL is given, and stdin and stdout are terminals. */
static bool is_prompt(const struct pb_call *call, const struct pb_query_options *o)
{
    return call->nargs == 0 && !pb_call_option(call, "file") && !o->output && !o->watch_ms &&
           isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

static int run_with(const struct pb_call *call, const struct pb_query_options *o, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    size_t length = 0;

    int r = read_sql(call, &sql, &length, err);
    if (r < 0)
        return r;
    if (call->which.text[0] && pb_served_needs_process(sql, length))
        return pb_fail(err, PB_USAGE, "%s, or --all", call->which.text);
    if (o->watch_ms)
        return pb_query_watch(call, o, sql, length, err);
    if (o->output)
        return pb_query_run_to_file(call, o, sql, length, err);
    return pb_query_run(call, o, sql, length, stdout, err);
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_query_options o;

    int r = read_options(call, &o, err);
    if (r == 0 && o.max_rows)
        return pb_fail(err, PB_USAGE, "--max-rows is for the nodes of a cluster (-t cluster)");
    if (r == 0 && is_prompt(call, &o))
        return pb_query_prompt(call, &o, err);
    return r < 0 ? r : run_with(call, &o, err);
}

int pb_query_over_cluster(const struct pb_call *call, const struct pb_cluster *c,
                          const struct pb_selection *selection, struct pb_cluster *renew, struct pb_err *err)
{
    struct pb_query_options o;

    int r = read_options(call, &o, err);
    if (r < 0)
        return r;
    if (pb_call_option(call, "archive") && strcmp(pb_call_option(call, "archive"), "none") != 0)
        return pb_fail(err, PB_USAGE, "an archive is read without the cluster: probing query --archive DIR");
    o.cluster = c;
    o.renew = renew;
    o.selection = selection;
    /* --timeout limits the nodes; merging their rows may take as long again. */
    o.deadline_ms = pb_call_option(call, "timeout") ? o.timeout_ms : 0;
    return run_with(call, &o, err);
}

static int run_over(const struct pb_call *call, struct pb_cluster *c, const struct pb_selection *s,
                    struct pb_err *err)
{
    return pb_query_over_cluster(call, c, s, c, err);
}

static const struct pb_option options[] = {
    {0, "format", PB_CHOICE("FORMAT", "table json jsonl csv tsv markdown parquet arrow"),
     "table, json, jsonl, csv, tsv, markdown, parquet or arrow (its stream)"},
    {'o', "output", PB_TEXT("FILE"), "write to a file, which appears whole or not at all"},
    {'f', "file", PB_TEXT("FILE"), "read the statements from a file"},
    {'x', "expanded", NULL, "one column a line"},
    {0, "watch", PB_TIME(.least = 100), "run it again and again, in place; q ends it"},
    {0, "columns", NULL, "jsonl: first a line with the names and types of the columns, then rows as arrays"},
    {0, "archive", PB_TEXT("DIR"),
     "read archived rows from DIR (default: PROBING_ARCHIVE, see archive); none: read none"},
    {0, "stats", NULL, "say how much was read, on stderr"},
    {0, "strict", NULL, "fail if something of a process could not be read (probing.sources says what)"},
    {0, "max-rows", PB_COUNT("N", .least = 1),
     "cluster: most rows of a table that a node sends (default 1000000)"},
    {0, "timeout", PB_TIME(.usual = 30000), "stop after this long: 30, 500ms, 2m (default 30s; 0: never)"},
    {0},
};

const struct pb_command pb_cmd_query = {
    .name = "query",
    .summary = "SQL over everything known of a process, live or dead",
    .synopsis = "[SQL | -]",
    .text = "DuckDB's SQL over what the process recorded (memory_usage, python.*), what can be "
            "seen of it now (system.*), and what is known about both (probing.tables, "
            "probing.columns). The query runs in a sandboxed process that can only compute; the "
            "target does nothing for it. Times are UTC.\n\n"
            "With --all each table has the columns rank and target_pid. With -t cluster it has "
            "rank, node and role, and each node filters and sums its own rows (docs/sql.md). "
            "Separate statements by semicolons.\n\n"
            "Without SQL, on a terminal, it is a prompt with history and completion (Tab); .help "
            "lists its commands. Ctrl-C stops a query (exit status 130).",
    .example = "probing -t 4711 query\n"
               "probing -t 4711 query \"SELECT * FROM memory_usage ORDER BY timestamp DESC\"\n"
               "probing -t 4711 query \"SELECT name, comment FROM probing.tables\"\n"
               "probing -t train.py --all query \"SELECT rank, memory_mb FROM memory_usage\"\n"
               "probing -t cluster query \"SELECT rank, node, memory_mb FROM memory_usage\"\n"
               "probing -t 4711 query --format csv -o rows.csv -f report.sql",
    .options = options,
    .max_args = 1,
    .flags = PB_CMD_INCIDENT | PB_CMD_SERVED | PB_CMD_MAY_TARGET | PB_CMD_PROBED | PB_CMD_DEAD | PB_CMD_ROWS |
             PB_CMD_TOGETHER | PB_CMD_CLUSTER,
    .run = run,
    .run_over = run_over,
};
