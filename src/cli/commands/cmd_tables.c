/* tables: the tables that a process has recorded, also after it has ended. */
#include "ask/parts.h"
#include "ask/sources.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/fanout.h"
#include "cli/print/rows.h"
#include "engine/archive/archive_count.h"
#include "engine/archive/archive_list.h"
#include "table/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const columns[] = {"target", "table", "rows",    "bytes",
                                      "first",  "last",  "dropped", "columns"};
#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

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

static void add_archived_columns(struct pb_rows *rows, const char *lines)
{
    struct pb_archive_columns *held = calloc(1, sizeof(*held));
    char text[2048] = "";
    size_t len = 0;

    if (held)
        pb_archive_columns_read(lines, strlen(lines), held);
    for (unsigned i = 0; held && i < held->n && len + 1 < sizeof(text); i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? ", " : "", held->at[i].name);
    pb_rows_text(rows, text);
    free(held);
}

static void add_stats(struct pb_rows *rows, const char *label, const char *name,
                      const struct pb_table_stats *stats, uint64_t dropped)
{
    pb_rows_text(rows, label);
    pb_rows_text(rows, name);
    pb_rows_number(rows, "%" PRIu64, stats->rows);
    pb_rows_number(rows, "%" PRIu64, stats->bytes);
    add_time(rows, stats->first);
    add_time(rows, stats->last);
    pb_rows_number(rows, "%" PRIu64, dropped);
}

/* One arena, with the archived rows of the same run. */
struct part {
    struct pb_rows *rows;
    const struct pb_target *target;
    struct pb_reader *reader;         /* NULL: only the archive exists */
    const char *archive;              /* folder of the archive */
    const struct pb_archive_run *run; /* NULL: nothing is archived */
};

static int add_table(const struct part *p, unsigned i)
{
    struct pb_table_info table;
    struct pb_table_stats stats;

    int r = pb_reader_table(p->reader, i, &table);
    if (r == 0)
        r = pb_reader_stats(p->reader, i, &stats);
    if (r == 0 && p->run)
        r = pb_archive_count(p->archive, p->run, table.name, p->reader, i, &stats);
    if (r < 0)
        return r;
    add_stats(p->rows, p->target->label, table.name, &stats, table.dropped);
    add_columns(p->rows, &table);
    return 0;
}

/* Adds a table that exists only in the archive. */
static int add_archived(void *arg, const char *name, const char *lines)
{
    const struct part *p = arg;
    struct pb_table_stats stats = {0};

    if (p->reader && pb_reader_find(p->reader, name) >= 0)
        return 0;
    int r = pb_archive_count(p->archive, p->run, name, NULL, 0, &stats);
    if (r < 0)
        return r;
    add_stats(p->rows, p->target->label, name, &stats, 0);
    add_archived_columns(p->rows, lines);
    return 0;
}

static int add_part(struct part *p, int fd, struct pb_err *err)
{
    char why[PB_WHY_SIZE];

    int r = fd < 0 ? 0 : pb_reader_open(fd, &p->reader, why);
    if (r < 0)
        return pb_fail(err, r, "the tables of process %d cannot be read: %s", (int)p->target->pid, why);
    for (unsigned i = 0; r == 0 && p->reader && i < pb_reader_ntables(p->reader); i++)
        r = add_table(p, i);
    if (r == 0 && p->run)
        r = pb_archive_tables(p->archive, p->run->id, add_archived, p);
    pb_reader_close(p->reader);
    return r < 0 ? pb_fail(err, r, "a table of process %d cannot be read: %s", (int)p->target->pid,
                           strerror(-r))
                 : 0;
}

/* The tables of its own agent, and those of recordings of it. */
static int add_target(const struct pb_call *call, const struct pb_target *target, struct pb_rows *rows,
                      struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    struct pb_target copy = *target;

    int r = pb_sources_open(&call->ask, &(struct pb_targets){.at = &copy, .n = 1}, &sources, err);
    for (unsigned i = 0; r == 0 && i < 1 + sources.at[0].live.nmore; i++) {
        const struct pb_sql_source *s = &sources.at[0];
        struct part part = {.rows = rows,
                            .target = target,
                            .archive = sources.archive,
                            .run = i ? s->more[i - 1] : s->archived};
        r = add_part(&part, i ? s->live.more[i - 1] : s->live.arena_fd, err);
    }
    return r;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    struct pb_parts_session *sessions;
    struct pb_rows rows;
    int failed = 0;

    /* A live process without an agent is injected; an ended one is read from its run folder. */
    int r = pb_parts_sessions(&call->ask, &call->targets, false, call->timeout_ms, &sessions, err);
    if (r < 0)
        return r;
    pb_rows_init(&rows, columns, COLUMNS);
    for (size_t i = 0; i < call->targets.n; i++) {
        const struct pb_target *target = &call->targets.at[i];
        r = sessions[i].result;
        r = target->dead || r >= 0 ? add_target(call, target, &rows, err)
                                   : pb_fail(err, r, "%s", pb_err_text(&sessions[i].err, r));
        if (r < 0)
            failed = pb_target_failed(call, target, r, err);
    }
    pb_parts_sessions_done(sessions, call->targets.n);
    r = failed && call->targets.n == 1 ? failed : pb_rows_print(&rows, call->format, "no tables", err);
    pb_rows_done(&rows);
    return r < 0 ? r : failed;
}

const struct pb_command pb_cmd_tables = {
    .name = "tables",
    .summary = "the tables of a process: columns, rows, bytes, time range",
    .synopsis = "",
    .text =
        "What its agent recorded, and what `record` did of it, with what is archived of them. Works on a "
        "process\nthat has ended as well, by its old pid or its id (list), from what it left. Times are UTC.",
    .example = "probing -t 4711 tables\nprobing -t 4711 tables --json",
    .flags = PB_CMD_CLUSTER | PB_CMD_TARGET | PB_CMD_DEAD | PB_CMD_ROWS | PB_CMD_TOGETHER | PB_CMD_TIMEOUT,
    .run = run,
};
