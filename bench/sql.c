/* What SQL costs: whole commands, warm and cold; scans of ten million rows of a table beside DuckDB's own
 * table of the same rows; how much a time range saves; what many queries at once do. Ratios are taken within
 * one run. */
#include "base/err.h"
#include "base/time.h"
#include "engine/broker.h"
#include "table/arena.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 10000000, NAMES = 200, RUNS = 7 };

static int failures;

static void report(const char *what, double value, const char *unit, double most)
{
    bool good = most == 0 || value <= most;
    printf("%-72s %9.2f %-3s %s", what, value, unit, most == 0 ? "" : good ? "ok" : "TOO MUCH");
    if (most != 0)
        printf(" (<= %g)", most);
    putchar('\n');
    fflush(stdout);
    failures += !good;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), by_value);
    return values[n / 2];
}

/* --- queries --- */

static char answer[4096];

static int columns(void *arg, const struct pb_sql_column *c, unsigned n)
{
    return 0;
}

static int row(void *arg, const struct pb_sql_cell *cells, unsigned n)
{
    size_t at = strlen(answer);
    for (unsigned i = 0; i < n && at < sizeof(answer); i++)
        at += (size_t)snprintf(answer + at, sizeof(answer) - at, "%.*s ", (int)cells[i].length,
                               cells[i].text ? cells[i].text : "");
    return 0;
}

static void note(void *arg, const char *text)
{
}

/* Milliseconds of one query within this process, worker warm. */
static double ask(int arena_fd, const char *sql)
{
    const struct pb_sql_sink sink = {columns, row, note, NULL, NULL};
    struct pb_sql_source source = {.live = {.pid = getpid(), .arena_fd = arena_fd}, .rank = -1};
    struct pb_sql_query q = {
        .sql = sql, .length = strlen(sql), .sources = &source, .nsources = 1, .timeout_ms = 60000};
    struct pb_err err = {0};

    answer[0] = '\0';
    uint64_t began = pb_now_ns();
    if (pb_sql_run(&q, &sink, NULL, &err) < 0) {
        fprintf(stderr, "%s: %s\n", sql, err.text);
        exit(1);
    }
    return (double)(pb_now_ns() - began) / 1e6;
}

static double ask_often(int arena_fd, const char *sql)
{
    double took[RUNS];
    ask(arena_fd, sql);
    for (int i = 0; i < RUNS; i++)
        took[i] = ask(arena_fd, sql);
    return median(took, RUNS);
}

/* --- whole commands --- */

static char program[600], worker[600];

static double command(char *const arguments[])
{
    posix_spawn_file_actions_t actions;
    extern char **environ;
    int status;
    pid_t pid;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1, 0);
    uint64_t began = pb_now_ns();
    if (posix_spawn(&pid, program, &actions, NULL, arguments, environ) != 0 || waitpid(pid, &status, 0) < 0 ||
        status != 0) {
        fprintf(stderr, "%s failed\n", program);
        exit(1);
    }
    double took = (double)(pb_now_ns() - began) / 1e6;
    posix_spawn_file_actions_destroy(&actions);
    return took;
}

/* A directory of its own has no worker in it: the first query is cold. */
static void new_directory(void)
{
    static char directory[64];
    snprintf(directory, sizeof(directory), "/tmp/probing-bench-XXXXXX");
    if (!mkdtemp(directory))
        exit(1);
    setenv("XDG_RUNTIME_DIR", directory, 1);
}

static void remove_directory(void)
{
    char text[128];
    snprintf(text, sizeof(text), "rm -rf %s", getenv("XDG_RUNTIME_DIR"));
    if (system(text) != 0)
        failures++;
}

static void bench_commands(void)
{
    char *const one[] = {program, "query", "SELECT 1", NULL};
    char pid[16];
    double took[50];

    for (int i = 0; i < 5; i++) {
        new_directory();
        took[i] = command(one);
        remove_directory();
    }
    report("probing query \"SELECT 1\", first time, p50 of 5", median(took, 5), "ms", 150);
    new_directory();
    command(one);
    for (int i = 0; i < 50; i++)
        took[i] = command(one);
    report("the same, worker warm, p50 of 50", median(took, 50), "ms", 10);
    pid_t target = fork();
    if (target == 0) {
        execlp("python3", "python3", "-c", "import time\nwhile True: time.sleep(1)", (char *)NULL);
        _exit(127);
    }
    usleep(300000);
    snprintf(pid, sizeof(pid), "%d", (int)target);
    char *const stack[] = {
        program, "-t", pid, "query", "SELECT func, file, lineno FROM python.backtrace LIMIT 5", NULL};
    command(stack);
    for (int i = 0; i < 50; i++)
        took[i] = command(stack);
    report("python.backtrace LIMIT 5, whole command, p50 of 50", median(took, 50), "ms", 0);
    kill(target, SIGKILL);
    waitpid(target, NULL, 0);
}

/* --- ten million rows --- */

static int fill(void)
{
    const struct pb_arena_options options = {.bound = 2ull << 30};
    const struct pb_column cols[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
                                     {"step", PB_I64, 0, NULL, NULL},
                                     {"operation_name", PB_STRING, 0, NULL, NULL},
                                     {"stage", PB_STRING, 0, NULL, NULL},
                                     {"duration_ms", PB_F64, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "python.torch_trace", .columns = cols, .ncolumns = 5};
    struct pb_arena *arena;
    struct pb_table *table;
    struct timespec now;

    if (pb_arena_create(PB_ARENA_MEMFD, "bench", &options, &arena) < 0 ||
        pb_table_new(arena, &spec, &table) < 0)
        exit(1);
    clock_gettime(CLOCK_MONOTONIC, &now);
    /* From now on: 500 minutes of rows, of which the last 5 are 1%. */
    int64_t start = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    for (int i = 0; i < ROWS; i++) {
        struct pb_row r;
        char name[32];
        if (pb_row_begin(table, &r) < 0)
            exit(1);
        pb_set_timestamp(&r, 0, start + (int64_t)i * 3000000);
        pb_set_i64(&r, 1, i / 1000);
        pb_set_string(
            &r, 2, name,
            (size_t)snprintf(name, sizeof(name), "aten::operation_%d", (int)(i * 2654435761u % NAMES)));
        pb_set_string(&r, 3, i % 2 ? "forward" : "backward", i % 2 ? 7 : 8);
        pb_set_f64(&r, 4, (double)(i % 1000) / 10);
        pb_row_commit(&r);
    }
    return pb_arena_fd(arena);
}

#define TOP                                                                                                  \
    "SELECT operation_name, AVG(duration_ms) as avg_duration, COUNT(*) as call_count FROM %s "               \
    "WHERE timestamp > now() - interval '5 minutes' GROUP BY operation_name ORDER BY avg_duration DESC "     \
    "LIMIT 10"

/* DuckDB itself, in this process, on a table of its own with the same rows. */
static double bench_native(const char *sql)
{
    char path[700], *error = NULL;
    void *db = NULL, *connection = NULL;
    double took[RUNS];

    snprintf(path, sizeof(path), "%s/../lib/probing/libduckdb.so", worker);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*open_db)(const char *, void **, void *, char **) =
        library ? (int (*)(const char *, void **, void *, char **))dlsym(library, "duckdb_open_ext") : NULL;
    int (*connect_db)(void *, void **) =
        library ? (int (*)(void *, void **))dlsym(library, "duckdb_connect") : NULL;
    int (*query)(void *, const char *, void *) =
        library ? (int (*)(void *, const char *, void *))dlsym(library, "duckdb_query") : NULL;
    if (!open_db || !connect_db || !query || open_db(NULL, &db, NULL, &error) ||
        connect_db(db, &connection)) {
        fprintf(stderr, "no DuckDB in %s\n", path);
        exit(1);
    }
    const char *const make[] = {
        "CREATE MACRO now() AS system.main.get_current_timestamp() AT TIME ZONE 'UTC'",
        "CREATE TABLE t AS SELECT (get_current_timestamp() AT TIME ZONE 'UTC') + to_milliseconds(3 * i) AS "
        "timestamp, i // 1000 AS "
        "step, 'aten::operation_' || (i * 2654435761 % 4294967296 % 200) AS operation_name, CASE WHEN i % 2 "
        "= 1 THEN 'forward' ELSE "
        "'backward' END AS stage, (i % 1000) / 10.0::DOUBLE AS duration_ms FROM range(10000000) r(i)"};
    for (int i = 0; i < 2; i++)
        if (query(connection, make[i], NULL) != 0) {
            fprintf(stderr, "DuckDB did not make its table\n");
            exit(1);
        }
    query(connection, sql, NULL);
    for (int i = 0; i < RUNS; i++) {
        uint64_t began = pb_now_ns();
        query(connection, sql, NULL);
        took[i] = (double)(pb_now_ns() - began) / 1e6;
    }
    return median(took, RUNS);
}

static void bench_scans(void)
{
    char sql[512], native[512];
    int fd = fill();

    /* now() - 5 minutes lies before every row: all ten million are aggregated. */
    snprintf(sql, sizeof(sql), TOP, "python.torch_trace");
    snprintf(native, sizeof(native), TOP, "t");
    double ours = ask_often(fd, sql),
           whole = ask_often(fd, "SELECT sum(duration_ms), count(*) FROM python.torch_trace");
    double recent = ask_often(fd, "SELECT sum(duration_ms), count(*) FROM python.torch_trace WHERE timestamp "
                                  "> now() + interval '495 minutes'");
    printf("rows in the last minutes: %s\n", answer);
    double theirs = bench_native(native);
    report("top 10 aggregate over 10 million rows of a live table", ours, "ms", 150);
    report("the same in DuckDB's own table", theirs, "ms", 0);
    report("ours / theirs", ours / theirs, "x", 1.5);
    report("sum over all rows", whole, "ms", 0);
    report("sum over the last 1% by time", recent, "ms", 0);
    report("the last 1% / all rows", recent / whole, "x", 0.2);
}

/* --- many at once --- */

static void bench_crowd(void)
{
    enum { CROWD = 100 };
    char *const one[] = {program, "query", "SELECT count(*) FROM range(1000000)", NULL};
    pid_t pids[CROWD];
    double worst = 0;

    uint64_t began = pb_now_ns();
    for (int i = 0; i < CROWD; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            command(one);
            _exit(0);
        }
    }
    for (int i = 0; i < CROWD; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        failures += status != 0;
        worst = (double)(pb_now_ns() - began) / 1e6;
    }
    report("100 queries at once, the last answered after", worst, "ms", 10000);
}

int main(void)
{
    ssize_t n = readlink("/proc/self/exe", worker, sizeof(worker) - 64);

    if (n < 0)
        return 1;
    for (int up = 0; up < 2; up++)
        *strrchr(worker, '/') = '\0';
    strcat(worker, "/bin");
    snprintf(program, sizeof(program), "%s/probing", worker);
    char path[700];
    snprintf(path, sizeof(path), "%s/probing-sql", worker);
    setenv("PROBING_SQL_WORKER", path, 1);
    bench_commands();
    bench_crowd();
    bench_scans();
    remove_directory();
    return failures ? 1 : 0;
}
