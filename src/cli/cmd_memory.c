/* memory: the quick overview of what a process takes of the machine's memory, and whether it grows. */
#include "base/cleanup.h"
#include "base/err.h"
#include "cli/cli.h"
#include "cli/query_sources.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 30000, POINTS = 60, CELLS = 4, MAX_ROWS = 64 };

/* A few rows of a few cells, as text. */
struct few {
    char cells[MAX_ROWS][CELLS][160];
    unsigned n;
};

static int take_columns(void *arg, const struct pb_sql_column *columns, unsigned n)
{
    return 0;
}

static int take_row(void *arg, const struct pb_sql_cell *cells, unsigned n)
{
    struct few *few = arg;

    if (few->n == MAX_ROWS)
        return 0;
    for (unsigned i = 0; i < n && i < CELLS; i++)
        snprintf(few->cells[few->n][i], sizeof(few->cells[0][0]), "%.*s", (int)cells[i].length,
                 cells[i].text);
    few->n++;
    return 0;
}

static void take_note(void *arg, const char *text)
{
}

static int ask(const struct pb_query_sources *sources, const char *sql, struct few *ret, struct pb_err *err)
{
    const struct pb_sql_sink sink = {take_columns, take_row, take_note, ret, NULL};
    struct pb_sql_query q = {.sql = sql,
                             .length = strlen(sql),
                             .sources = sources->at,
                             .nsources = sources->n,
                             .timeout_ms = TIMEOUT_MS};

    ret->n = 0;
    return pb_sql_run(&q, &sink, NULL, err);
}

static void print_size(const char *what, const char *bytes)
{
    if (bytes[0])
        printf("%-14s %10.1f MB\n", what, strtod(bytes, NULL) / (1 << 20));
}

/* Eight heights from the least to the most of what was recorded. */
static void print_sparkline(const struct few *few)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double least = 1e300, most = -1e300;

    for (unsigned i = 0; i < few->n; i++) {
        double v = strtod(few->cells[i][0], NULL);
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    for (unsigned i = 0; i < few->n; i++) {
        double v = strtod(few->cells[i][0], NULL);
        fputs(bars[most > least ? (int)((v - least) / (most - least) * 7.999) : 0], stdout);
    }
    printf("  %.1f to %.1f MB\n", least, most);
}

static int print_now(const struct pb_query_sources *sources, struct few *few, struct pb_err *err)
{
    int r =
        ask(sources, "SELECT rss_bytes, peak_rss_bytes, vms_bytes, swap_bytes FROM system.process", few, err);
    if (r < 0 || few->n == 0)
        return r;
    print_size("in RAM", few->cells[0][0]);
    print_size("at most", few->cells[0][1]);
    print_size("mapped", few->cells[0][2]);
    print_size("swapped out", few->cells[0][3]);
    return 0;
}

static int print_history(const struct pb_query_sources *sources, struct few *few, struct pb_err *err)
{
    int r = ask(sources,
                "SELECT regr_slope(memory_mb, epoch(timestamp)) * 60, epoch(max(timestamp) - "
                "min(timestamp)), count(*), "
                "arg_max(memory_mb, timestamp) FROM memory_usage",
                few, err);
    if (r < 0)
        return r;
    if (few->n == 0 || strtol(few->cells[0][2], NULL, 10) < 2) {
        puts("nothing is recorded yet: growth is known a few seconds after `probing inject`");
        return 0;
    }
    printf("%-14s %+10.2f MB a minute, over the %.0f s recorded (last: %.1f MB)\n", "growth",
           strtod(few->cells[0][0], NULL), strtod(few->cells[0][1], NULL), strtod(few->cells[0][3], NULL));
    r = ask(sources,
            "SELECT avg(memory_mb) FROM (SELECT memory_mb, ntile(60) OVER (ORDER BY timestamp) AS piece FROM "
            "memory_usage) "
            "GROUP BY piece ORDER BY piece",
            few, err);
    if (r == 0)
        print_sparkline(few);
    return r;
}

/* Python's and torch's own view, where somebody records it. */
static int print_python(const struct pb_query_sources *sources, struct few *few, struct pb_err *err)
{
    int r = ask(sources,
                "SELECT heap_blocks, torch_cpu_bytes, torch_cuda_bytes FROM python.memory ORDER BY timestamp "
                "DESC LIMIT 1",
                few, err);
    if (r < 0 || few->n == 0)
        return r;
    if (few->cells[0][0][0])
        printf("%-14s %10s blocks\n", "Python heap", few->cells[0][0]);
    print_size("torch, CPU", few->cells[0][1]);
    print_size("torch, GPU", few->cells[0][2]);
    return 0;
}

static int print_maps(const struct pb_query_sources *sources, struct few *few, struct pb_err *err)
{
    int r = ask(sources,
                "SELECT coalesce(path, 'anonymous'), sum(rss_bytes)::BIGINT, sum(bytes)::BIGINT, count(*) "
                "FROM system.maps "
                "GROUP BY 1 ORDER BY 2 DESC NULLS LAST LIMIT 5",
                few, err);
    if (r < 0 || few->n == 0)
        return r;
    puts("largest mappings, in RAM and mapped:");
    for (unsigned i = 0; i < few->n; i++)
        printf("  %9.1f MB %9.1f MB  %.100s (%s)\n", strtod(few->cells[i][1], NULL) / (1 << 20),
               strtod(few->cells[i][2], NULL) / (1 << 20), few->cells[i][0], few->cells[i][3]);
    return 0;
}

static int run(const struct pb_call *call, struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    struct few *few = calloc(1, sizeof(*few));

    int r = few ? pb_query_sources_open(call, &sources, err) : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = print_now(&sources, few, err);
    if (r == 0)
        r = print_history(&sources, few, err);
    if (r == 0)
        r = print_python(&sources, few, err);
    if (r == 0)
        r = print_maps(&sources, few, err);
    free(few);
    return r;
}

const struct pb_command pb_cmd_memory = {
    .name = "memory",
    .summary = "what a process takes of the memory, and whether it grows",
    .synopsis = "",
    .text = "Now, from the kernel; over time, from what its agent has recorded. Of a process that has ended: "
            "what it left.",
    .example = "probing -t 4711 memory",
    .flags = PB_CMD_TARGET | PB_CMD_DEAD,
    .run = run,
};
