/* The scans of bench/sql.py, which talks to this program: ten million rows of a table in shared memory, asked
 * through a warm worker, and the same rows in a table of DuckDB's own, in this process.
 *
 *   bench-sql alone    loads DuckDB, opens it, runs SELECT 1, and ends
 *   bench-sql          makes both tables, says "ready", then answers lines of "ours SQL" and "native SQL"
 * with the milliseconds they took; $T stands for the table */
#include "base/err.h"
#include "base/time.h"
#include "engine/caller/broker.h"
#include "table/arena.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 10000000, NAMES = 200 };

static int (*native_query)(void *, const char *, void *);
static void *connection;

static void fail(const char *why)
{
    fprintf(stderr, "bench-sql: %s\n", why);
    exit(1);
}

static void run_ours(int arena_fd, const char *sql)
{
    struct pb_sql_source source = {.live = {.pid = getpid(), .arena_fd = arena_fd}, .rank = -1};
    struct pb_sql_query q = {
        .sql = sql, .length = strlen(sql), .sources = &source, .nsources = 1, .timeout_ms = 60000};
    struct pb_err err = {0};

    struct pb_sql_event event;
    struct pb_sql *s;

    if (pb_sql_open(&q, &s, &err) < 0)
        fail(err.text);
    int r;
    while ((r = pb_sql_next(s, &event, &err)) > 0)
        ;
    pb_sql_close(s);
    if (r < 0)
        fail(err.text);
}

static int fill(void)
{
    const struct pb_arena_options options = {.bound = 2ull << 30};
    const struct pb_column columns[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
                                        {"step", PB_I64, 0, NULL, NULL},
                                        {"operation_name", PB_STRING, 0, NULL, NULL},
                                        {"stage", PB_STRING, 0, NULL, NULL},
                                        {"duration_ms", PB_F64, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "bench.calls", .columns = columns, .ncolumns = 5};
    struct pb_arena *arena;
    struct pb_table *table;

    if (pb_arena_create(PB_ARENA_MEMFD, "bench", &options, &arena) < 0 ||
        pb_table_new(arena, &spec, &table) < 0)
        fail("no memory for ten million rows");
    /* From now on: 500 minutes of rows, of which the last 5 are 1%. */
    int64_t start = (int64_t)pb_now_ns();
    for (int i = 0; i < ROWS; i++) {
        struct pb_row r;
        char name[32];
        if (pb_row_begin(table, &r) < 0)
            fail("a row found no room");
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

static void run_native(const char *sql)
{
    if (native_query(connection, sql, NULL) != 0)
        fail(sql);
}

static void open_native(const char *path)
{
    void *db = NULL, *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    char *error = NULL;

    if (!library)
        fail(dlerror());
    int (*open_db)(const char *, void **, void *, char **) =
        (int (*)(const char *, void **, void *, char **))dlsym(library, "duckdb_open_ext");
    int (*connect_db)(void *, void **) = (int (*)(void *, void **))dlsym(library, "duckdb_connect");
    native_query = (int (*)(void *, const char *, void *))dlsym(library, "duckdb_query");
    if (!open_db || !connect_db || !native_query || open_db(NULL, &db, NULL, &error) ||
        connect_db(db, &connection))
        fail("DuckDB does not open");
}

/* The same rows; the operations are strings, as DuckDB's users have them. */
static void fill_native(void)
{
    run_native("CREATE MACRO now() AS system.main.get_current_timestamp() AT TIME ZONE 'UTC'");
    run_native(
        "CREATE TABLE t AS SELECT (get_current_timestamp() AT TIME ZONE 'UTC') + to_milliseconds(3 * i) AS "
        "timestamp, i // 1000 AS step, 'aten::operation_' || (i * 2654435761 % 4294967296 % 200) AS "
        "operation_name, CASE WHEN i % 2 = 1 THEN 'forward' ELSE 'backward' END AS stage, "
        "(i % 1000) / 10.0::DOUBLE AS duration_ms FROM range(10000000) r(i)");
}

/* The statement with the table's name put where $T stands. */
static void name_table(const char *line, const char *table, char *ret, size_t size)
{
    const char *at = strstr(line, "$T");

    if (at)
        snprintf(ret, size, "%.*s%s%s", (int)(at - line), line, table, at + 2);
    else
        snprintf(ret, size, "%s", line);
}

int main(int argc, char **argv)
{
    char path[700], line[2048], sql[4096];
    ssize_t n = readlink("/proc/self/exe", path, 600);

    if (n < 0)
        return 1;
    path[n] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/lib/probing/libduckdb.so");
    open_native(path);
    if (argc > 1 && strcmp(argv[1], "alone") == 0) {
        run_native("SELECT 1");
        _exit(0);
    }
    int fd = fill();
    fill_native();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        bool ours = strncmp(line, "ours ", 5) == 0;
        line[strcspn(line, "\n")] = '\0';
        name_table(strchr(line, ' ') + 1, ours ? "bench.calls" : "t", sql, sizeof(sql));
        uint64_t began = pb_now_ns();
        if (ours)
            run_ours(fd, sql);
        else
            run_native(sql);
        printf("%.3f\n", (double)(pb_now_ns() - began) / 1e6);
        fflush(stdout);
    }
    return 0;
}
