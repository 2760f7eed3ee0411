/* engine_test: what the tests of the engine share: arenas made for a test, and queries over them whose
 * results are kept as text, a line a row with cells between bars. */
#pragma once

#include <time.h>

#include "base/err.h"
#include "engine/caller/broker.h"
#include "table/arena.h"

#include "slow.h"
#include "test.h"

#define SECOND INT64_C(1000000000)

struct answer {
    char rows[1 << 16], notes[4096], types[1024];
    size_t n;
    int r;
    struct pb_err err;
    struct pb_sql_stats stats;
    uint64_t scanned, known; /* as it was told last */
};

static inline void add_text(char *to, size_t size, const char *text, size_t length)
{
    size_t n = strlen(to);
    if (n + length + 1 < size) {
        memcpy(to + n, text, length);
        to[n + length] = '\0';
    }
}

static inline void take_columns(struct answer *a, const struct pb_sql_column *columns, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        add_text(a->types, sizeof(a->types), columns[i].type, strlen(columns[i].type));
        add_text(a->types, sizeof(a->types), " ", 1);
    }
}

static inline void take_row(struct answer *a, const struct pb_sql_cell *cells, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        add_text(a->rows, sizeof(a->rows), "|", i > 0);
        if (cells[i].kind == PB_SQL_NULL)
            add_text(a->rows, sizeof(a->rows), "NULL", 4);
        else
            add_text(a->rows, sizeof(a->rows), cells[i].text, cells[i].length);
    }
    add_text(a->rows, sizeof(a->rows), "\n", 1);
    a->n++;
}

static inline void take_rows(struct answer *a, const struct pb_batch *batch)
{
    struct pb_row_text row = {0};

    for (uint32_t i = 0; i < batch->nrows; i++) {
        assert_int_equal(pb_row_text_take(&row, batch, i), 0);
        take_row(a, row.cells, batch->ncolumns);
    }
    pb_row_text_done(&row);
}

static inline void take_note(struct answer *a, const char *text)
{
    add_text(a->notes, sizeof(a->notes), text, strlen(text));
    add_text(a->notes, sizeof(a->notes), "\n", 1);
}

/* Pulls a query to its end. */
static inline int take_all(const struct pb_sql_query *q, struct answer *a, struct pb_err *err)
{
    struct pb_sql_event event;
    struct pb_sql *s;

    int r = pb_sql_open(q, &s, err);
    if (r < 0)
        return r;
    while ((r = pb_sql_next(s, &event, err)) > 0)
        if (event.kind == PB_SQL_EVENT_COLUMNS) {
            take_columns(a, event.columns, event.n);
        } else if (event.kind == PB_SQL_EVENT_BATCH) {
            take_rows(a, &event.batch);
        } else if (event.kind == PB_SQL_EVENT_NOTE) {
            take_note(a, event.text);
        } else if (event.kind == PB_SQL_EVENT_FAILED) {
            char text[512];
            snprintf(text, sizeof(text), "source %u is missing in %s: %s", event.source, event.table,
                     event.text);
            take_note(a, text);
        } else {
            a->scanned = event.scanned;
            a->known = event.known;
        }
    a->stats = *pb_sql_stats_of(s);
    pb_sql_close(s);
    return r;
}

static inline void no_secrets(pid_t pid, char ret[PB_REDACT_SIZE])
{
    ret[0] = '\0';
}

/* Runs statements over one arena (-1: none), or over several as ranks 0, 1, ... of two processes. Static
 * memory. */
static inline struct answer *ask_all(const int *fds, unsigned n, const char *sql, unsigned timeout_ms)
{
    static struct answer a;
    struct pb_sql_source *sources = calloc(n, sizeof(*sources));

    assert_non_null(sources);
    memset(&a, 0, sizeof(a));
    for (unsigned i = 0; i < n; i++)
        sources[i] = (struct pb_sql_source){
            .live = {.pid = i ? getppid() : getpid(), .arena_fd = fds[i], .redact = no_secrets},
            .rank = (int32_t)i};
    struct pb_sql_query q = {
        .sql = sql, .length = strlen(sql), .sources = sources, .nsources = n, .timeout_ms = timeout_ms};
    a.r = take_all(&q, &a, &a.err);
    free(sources);
    return &a;
}

static inline struct answer *ask(int fd, const char *sql)
{
    return ask_all(&fd, 1, sql, 20000 * TEST_SLOWNESS);
}

static inline void expect(int fd, const char *sql, const char *rows)
{
    struct answer *a = ask(fd, sql);
    if (a->r < 0)
        print_error("%s: %s\n", sql, a->err.text);
    assert_int_equal(a->r, 0);
    assert_string_equal(a->rows, rows);
}

static inline int64_t mono_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

/* The worker of this build, in a runtime directory of this test's own. */
static inline int use_own_worker(void **state)
{
    char path[512], directory[] = "/tmp/probing-engine-XXXXXX";
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);

    if (n < 0)
        return -1;
    path[n] = '\0';
    for (int up = 0; up < 2; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/bin/probing-sql");
    if (!mkdtemp(directory) || access(path, X_OK) < 0)
        return -1;
    setenv("PROBING_SQL_WORKER", path, 1);
    setenv("XDG_RUNTIME_DIR", directory, 1);
    return 0;
}

static inline int remove_own_directory(void **state)
{
    char command[600];
    snprintf(command, sizeof(command), "rm -rf %s", getenv("XDG_RUNTIME_DIR"));
    return system(command) == 0 ? 0 : -1;
}

/* The arena of the tests with a writer: a table "stream" in small segments, and a worker of our own. For
 * cmocka: -1 is failure. */
static inline int make_stream_arena(void **state, uint64_t bound, struct pb_arena **arena,
                                    struct pb_table **table)
{
    const struct pb_arena_options options = {.bound = bound, .segment_size = 1 << 16};
    const struct pb_column columns[] = {{"timestamp", PB_TIMESTAMP, 0, NULL, NULL},
                                        {"n", PB_I64, 0, NULL, NULL},
                                        {"proof", PB_I64, 0, NULL, NULL},
                                        {"name", PB_STRING, 0, NULL, NULL}};
    const struct pb_table_spec spec = {.name = "stream", .columns = columns, .ncolumns = 4};

    return use_own_worker(state) < 0 || pb_arena_create(PB_ARENA_MEMFD, "t", &options, arena) < 0 ||
                   pb_table_new(*arena, &spec, table) < 0
               ? -1
               : 0;
}
