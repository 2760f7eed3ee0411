/* engine: see engine.h. */
#include "engine/worker/engine_impl.h"

#include "base/cleanup.h"
#include "base/time.h"
#include "engine/shared/known.h"
#include "engine/shared/sql_text.h"
#include "engine/worker/archive_scan.h"
#include "engine/worker/escape.h"
#include "engine/worker/hints.h"
#include "engine/worker/need.h"
#include "engine/worker/node_rows.h"
#include "engine/worker/plan.h"
#include "engine/worker/scan.h"
#include "engine/worker/symbol.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pb_engine_do(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    duckdb_result result = {0};

    int r = duck.query(e->connection, sql, &result) == DuckDBSuccess ? 0 : -EIO;
    if (r < 0)
        pb_fail(err, r, "%s", duck.result_error(&result) ? duck.result_error(&result) : "DuckDB failed");
    duck.destroy_result(&result);
    return r;
}

/* The first cell, a VARCHAR or NULL. */
static int first_cell(duckdb_result *result, char **ret)
{
    duckdb_data_chunk chunk = duck.fetch_chunk(*result);

    *ret = NULL;
    if (!chunk)
        return -ENODATA;
    duckdb_vector vector = duck.data_chunk_get_vector(chunk, 0);
    uint64_t *validity = duck.vector_get_validity(vector);
    if (duck.data_chunk_get_size(chunk) && (!validity || (validity[0] & 1))) {
        duckdb_string_t *s = duck.vector_get_data(vector);
        uint32_t n = s->value.inlined.length;
        *ret = strndup(
            n <= sizeof(s->value.inlined.inlined) ? s->value.inlined.inlined : s->value.pointer.ptr, n);
    }
    duck.destroy_data_chunk(&chunk);
    return *ret ? 0 : -ENODATA;
}

static int execute(duckdb_prepared_statement statement, const char *parameter, size_t length, char **ret)
{
    duckdb_result result = {0};
    int r = -EIO;

    if ((!parameter || duck.bind_varchar_length(statement, 1, parameter, length) == DuckDBSuccess) &&
        duck.execute_prepared(statement, &result) == DuckDBSuccess)
        r = first_cell(&result, ret);
    duck.destroy_result(&result);
    return r;
}

int pb_engine_ask(struct pb_engine *e, const char *sql, const char *parameter, size_t length, char **ret,
                  struct pb_err *err)
{
    duckdb_prepared_statement statement = NULL;
    int r = -EIO;

    if (duck.prepare(e->connection, sql, &statement) == DuckDBSuccess)
        r = execute(statement, parameter, length, ret);
    duck.destroy_prepare(&statement);
    return r < 0 ? pb_fail(err, r, "DuckDB did not answer: %s", sql) : 0;
}

int pb_engine_tree(struct pb_engine *e, const char *sql, char **ret)
{
    static const char serialize[] = "SELECT json_serialize_sql($1::VARCHAR)";

    *ret = NULL;
    if (!e->serialize && duck.prepare(e->connection, serialize, &e->serialize) != DuckDBSuccess)
        duck.destroy_prepare(&e->serialize);
    int r = e->serialize ? execute(e->serialize, sql, strlen(sql), ret) : -EIO;
    return r < 0 ? r : *ret ? 0 : -EBADMSG;
}

int pb_engine_send(struct pb_engine *e, struct pb_wire *m)
{
    pthread_mutex_lock(&e->sending);
    int r = pb_wire_send(e->request->socket, m, e->request->deadline);
    pthread_mutex_unlock(&e->sending);
    return r;
}

int pb_engine_receive(struct pb_engine *e, struct pb_wire *m)
{
    return pb_wire_receive(e->request->socket, m, e->request->deadline);
}

void pb_engine_progress(struct pb_engine *e)
{
    struct pollfd p = {.events = POLLOUT};

    /* Rows being sent show the progress well enough; so do rows that the caller has not read yet. */
    if (pthread_mutex_trylock(&e->sending) != 0)
        return;
    p.fd = e->request && e->request->progress ? e->request->socket : -1;
    if (poll(&p, 1, 0) == 1 && p.revents == POLLOUT) {
        struct pb_wire m = {0};
        pb_wire_begin(&m, PB_SQL_PROGRESS);
        pb_wire_put_u64(&m, pb_scan_rows());
        pb_wire_put_u64(&m, pb_scan_rows_known());
        pb_wire_send(p.fd, &m, 0);
        pb_wire_done(&m);
    }
    pthread_mutex_unlock(&e->sending);
}

static void set_request(struct pb_engine *e, struct pb_engine_request *request)
{
    pthread_mutex_lock(&e->sending);
    e->request = request;
    pthread_mutex_unlock(&e->sending);
}

void pb_engine_note(struct pb_engine *e, const char *format, ...)
{
    struct pb_wire m = {0};
    char text[512];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    pb_wire_begin(&m, PB_SQL_NOTE);
    pb_wire_put_text(&m, text, strlen(text));
    /* A failed socket is noticed by the rows that follow. */
    pb_engine_send(e, &m);
    pb_wire_done(&m);
}

void pb_engine_interrupt(struct pb_engine *e)
{
    pthread_mutex_lock(&e->stopping);
    if (e->busy) {
        e->stopped = true;
        duck.interrupt(e->connection);
    }
    pthread_mutex_unlock(&e->stopping);
}

bool pb_engine_was_stopped(struct pb_engine *e)
{
    pthread_mutex_lock(&e->stopping);
    bool stopped = e->stopped;
    pthread_mutex_unlock(&e->stopping);
    return stopped;
}

/* Only statements of the request may be interrupted, never the clean-up after them. */
static void set_busy(struct pb_engine *e, bool busy)
{
    pthread_mutex_lock(&e->stopping);
    e->busy = busy;
    if (busy)
        e->stopped = false;
    pthread_mutex_unlock(&e->stopping);
}

/* --- opening --- */

/* "now() - 60": subtracts seconds from a time. */
static void subtract_seconds(duckdb_function_info info, duckdb_data_chunk input, duckdb_vector output)
{
    duckdb_vector left = duck.data_chunk_get_vector(input, 0), right = duck.data_chunk_get_vector(input, 1);
    const int64_t *times = duck.vector_get_data(left), *seconds = duck.vector_get_data(right);
    const uint64_t *valid[] = {duck.vector_get_validity(left), duck.vector_get_validity(right)};
    int64_t *to = duck.vector_get_data(output);
    idx_t n = duck.data_chunk_get_size(input);

    for (idx_t i = 0; i < n; i++) {
        bool null = (valid[0] && !(valid[0][i / 64] >> i % 64 & 1)) ||
                    (valid[1] && !(valid[1][i / 64] >> i % 64 & 1));
        int64_t us = 0;
        if (null || __builtin_mul_overflow(seconds[i], (int64_t)1000000, &us) ||
            __builtin_sub_overflow(times[i], us, &to[i])) {
            duck.vector_ensure_validity_writable(output);
            duck.vector_get_validity(output)[i / 64] &= ~(UINT64_C(1) << i % 64);
        }
    }
}

static int register_subtraction(struct pb_engine *e, duckdb_type time)
{
    duckdb_scalar_function f = duck.create_scalar_function();
    duckdb_logical_type when = duck.create_logical_type(time),
                        number = duck.create_logical_type(DUCKDB_TYPE_BIGINT);

    duck.scalar_function_set_name(f, "-");
    duck.scalar_function_add_parameter(f, when);
    duck.scalar_function_add_parameter(f, number);
    duck.scalar_function_set_return_type(f, when);
    duck.scalar_function_set_function(f, subtract_seconds);
    int r = duck.register_scalar_function(e->connection, f) == DuckDBSuccess ? 0 : -EIO;
    duck.destroy_logical_type(&when);
    duck.destroy_logical_type(&number);
    duck.destroy_scalar_function(&f);
    return r;
}

static int open_database(struct pb_engine *e, unsigned threads, uint64_t memory, struct pb_err *err)
{
    char nthreads[16], limit[32], *why = NULL;
    duckdb_config config = NULL;

    snprintf(nthreads, sizeof(nthreads), "%u", threads);
    snprintf(limit, sizeof(limit), "%lluMiB", (unsigned long long)(memory >> 20));
    const char *const settings[][2] = {
        {"autoinstall_known_extensions", "false"},
        {"autoload_known_extensions", "false"},
        {"allow_community_extensions", "false"},
        {"threads", nthreads},
        {"memory_limit", limit},
    };
    if (duck.create_config(&config) != DuckDBSuccess)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        if (duck.set_config(config, settings[i][0], settings[i][1]) != DuckDBSuccess) {
            duck.destroy_config(&config);
            return pb_fail(err, -EPROTONOSUPPORT, "DuckDB does not know the setting %s", settings[i][0]);
        }
    duckdb_state state = duck.open_ext(":memory:", &e->db, config, &why);
    duck.destroy_config(&config);
    int r = state == DuckDBSuccess
                ? 0
                : pb_fail(err, -EIO, "DuckDB did not open: %s", why ? why : "no reason given");
    duck.free(why);
    if (r == 0 && duck.connect(e->db, &e->connection) != DuckDBSuccess)
        r = pb_fail(err, -EIO, "DuckDB did not connect");
    return r;
}

/* DuckDB's own now() is a TIMESTAMPTZ, which is slow to compare with UTC times. */
static const char *const first_words[] = {
    "SET TimeZone = 'UTC'",
    /* How much of a result DuckDB computes ahead: little, so that the first rows come soon. */
    "SET streaming_buffer_size = '64KB'",
    "CREATE SCHEMA python",
    "CREATE SCHEMA probing",
    "CREATE SCHEMA memory.system",
    "CREATE MACRO now() AS system.main.get_current_timestamp() AT TIME ZONE 'UTC'",
    "CREATE MACRO get_current_timestamp() AS system.main.get_current_timestamp() AT TIME ZONE 'UTC'",
    "SET lock_configuration = true",
};

/* Forbids all files, or all but those of the archive. */
static int close_files(struct pb_engine *e, const char *archive, struct pb_err *err)
{
    int r = archive ? pb_archive_open_folder(e, archive, err) : 0;
    return r < 0 ? r : pb_engine_do(e, "SET enable_external_access = false", err);
}

int pb_engine_open(unsigned threads, uint64_t memory, const char *archive, struct pb_engine **ret,
                   struct pb_err *err)
{
    struct pb_engine *e = calloc(1, sizeof(*e));

    if (!e)
        return pb_fail(err, -ENOMEM, "out of memory");
    e->threads = threads;
    pthread_mutex_init(&e->sending, NULL);
    pthread_mutex_init(&e->stopping, NULL);
    int r = open_database(e, threads, memory, err);
    if (r == 0 &&
        (pb_scan_register(e->connection) < 0 || register_subtraction(e, DUCKDB_TYPE_TIMESTAMP) < 0 ||
         register_subtraction(e, DUCKDB_TYPE_TIMESTAMP_TZ) < 0))
        r = pb_fail(err, -EIO, "DuckDB did not take our functions");
    if (r == 0)
        pb_symbol_register(e->connection);
#ifdef PROBING_TEST_ESCAPE
    if (r == 0)
        pb_escape_register(e->connection);
#endif
    if (r == 0)
        r = close_files(e, archive, err);
    pb_need_register(e);
    for (size_t i = 0; r == 0 && i < sizeof(first_words) / sizeof(first_words[0]); i++)
        r = pb_engine_do(e, first_words[i], err);
    /* On failure the process ends: nothing needs to be released. */
    if (r == 0)
        *ret = e;
    return r;
}

/* --- requests --- */

struct statements {
    char **at;
    size_t n;
};

static void release_statements(struct statements *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->at[i]);
    free(s->at);
}

/* DuckDB's own lists the tables of one schema alone, six of some fifty. */
static const char show_tables[] = "SELECT name FROM probing.tables ORDER BY name";

static bool is_show_tables(const char *sql)
{
    static const char *const words[] = {"show", "tables"};

    for (size_t i = 0; i < 2; i++) {
        sql += strspn(sql, " \t\r\n");
        if (strncasecmp(sql, words[i], strlen(words[i])) != 0)
            return false;
        sql += strlen(words[i]);
    }
    return sql[strspn(sql, " \t\r\n")] == '\0';
}

static int split_statements(const char *sql, uint32_t length, struct statements *ret, struct pb_err *err)
{
    const char *end = sql + length;

    for (const char *p = sql; p < end;) {
        const char *stop = pb_sql_statement_end(p, end);
        if (!pb_sql_is_blank(p, stop)) {
            char **more = realloc(ret->at, (ret->n + 1) * sizeof(*more));
            if (!more)
                return pb_fail(err, -ENOMEM, "out of memory");
            ret->at = more;
            ret->at[ret->n] = pb_sql_qualify(p, stop, pb_system_tables);
            if (ret->at[ret->n] && is_show_tables(ret->at[ret->n])) {
                free(ret->at[ret->n]);
                ret->at[ret->n] = strdup(show_tables);
            }
            if (!ret->at[ret->n++])
                return pb_fail(err, -ENOMEM, "out of memory");
        }
        p = stop + 1;
    }
    return ret->n ? 0 : pb_fail(err, -EINVAL, "the SQL has no statement");
}

static int check_text(const char *sql, uint32_t length, struct pb_err *err)
{
    if (length > PB_SQL_MAX_TEXT)
        return pb_fail(err, -E2BIG, "the statements are %u bytes long; %u is the most", length,
                       PB_SQL_MAX_TEXT);
    if (memchr(sql, 0, length))
        return pb_fail(err, -EINVAL, "the statement contains a NUL byte");
    if (!pb_utf8_valid(sql, length))
        return pb_fail(err, -EINVAL, "the statement is not UTF-8");
    return 0;
}

static bool asks_for_comments(const struct statements *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcasestr(s->at[i], "comment") || strcasestr(s->at[i], "duckdb_"))
            return true;
    return false;
}

static int run_all(struct pb_engine *e, struct pb_err *err)
{
    struct pb_engine_request *q = e->request;
    struct statements s = {0};

    int r = check_text(q->sql, q->length, err);
    if (r == 0)
        r = split_statements(q->sql, q->length, &s, err);
    if (r == 0 && q->plan) {
        r = pb_plan_send(e, s.at, s.n, err);
        release_statements(&s);
        return r;
    }
    if (r == 0)
        r = q->node_rows ? pb_node_rows_begin(e, err) : pb_views_sync(e, err);
    if (r == 0 && asks_for_comments(&s))
        r = pb_views_comment(e, err);
    e->several = s.n > 1;
    e->single = s.n == 1;
    for (size_t i = 0; r == 0 && !q->node_rows && i < s.n; i++)
        pb_prepare_statement(e, s.at[i]);
    if (r == 0)
        r = pb_need_missing(e, err);
    if (r == 0)
        r = pb_prepare_tables(e, err);
    if (r == 0)
        r = pb_engine_do(e, "BEGIN TRANSACTION READ ONLY", err);
    /* Several threads read one table only where the order of rows does not affect the result. */
    e->scans.threads = e->ordered ? 1 : e->threads;
    for (size_t i = 0; r == 0 && i < s.n; i++)
        r = pb_statement_run(e, s.at[i], err);
    if (r == 0 && !q->node_rows)
        pb_prepare_note_empty(e);
    release_statements(&s);
    return r;
}

static int send_end(struct pb_engine *e, int r, const struct pb_err *err)
{
    const struct pb_catalog *c = &e->request->catalog;
    uint64_t read = 0, skipped = 0, damaged = 0;
    char text[2048];

    for (unsigned i = 0; i < c->ntables; i++) {
        read += c->tables[i]->segments_read;
        skipped += c->tables[i]->segments_skipped;
        damaged += c->tables[i]->damaged;
    }
    if (damaged)
        pb_engine_note(e, "%llu segments or cells made no sense and were left out: the file is damaged",
                       (unsigned long long)damaged);
    pb_wire_begin(&e->out, r < 0 ? PB_SQL_ERROR : PB_SQL_DONE);
    /* DuckDB gives no code for a table that is not there. */
    if (r == -EINVAL && strstr(pb_err_text(err, r), "does not exist"))
        r = -ENOENT;
    if (r < 0) {
        pb_hint(c, pb_err_text(err, r), pb_engine_was_stopped(e) ? e->request->timeout_ms : 0, text,
                sizeof(text));
        pb_wire_put_u32(&e->out, (uint32_t)-r);
        pb_wire_put_text(&e->out, text, strlen(text));
    } else {
        pb_wire_put_u64(&e->out, read);
        pb_wire_put_u64(&e->out, skipped);
        pb_wire_put_u64(&e->out, pb_scan_rows());
        pb_wire_put_u64(&e->out, e->reruns);
        pb_wire_put_u64(&e->out, pb_now_ns() - e->request->received);
    }
    return pb_engine_send(e, &e->out);
}

/* Whether the worker should end: DuckDB refuses everything from now on, or ran out of memory half-way and may
 * never free it. A new worker starts in 40 ms. */
static bool is_spent(const struct pb_err *err)
{
    static const char *const words[] = {"INTERNAL",           "FATAL",
                                        "Out of Memory",      "bad_alloc",
                                        "could not allocate", "database has been invalidated"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(err->text, words[i]))
            return true;
    return false;
}

int pb_engine_run(struct pb_engine *e, struct pb_engine_request *request)
{
    struct pb_err err = {0};

    set_request(e, request);
    e->ordered = e->opaque = e->hidden = false;
    e->nmissing = 0;
    e->reruns = 0;
    e->scans = (struct pb_scan_request){
        .catalog = &request->catalog, .prepare = pb_prepare_table, .arg = e, .threads = 1};
    pb_scan_begin(&e->scans);
    set_busy(e, true);
    int r = run_all(e, &err);
    set_busy(e, false);
    /* There may be no transaction to roll back; other errors are found by the next statement. */
    pb_engine_do(e, "ROLLBACK", NULL);
    if (request->node_rows)
        pb_node_rows_end(e);
    int sent = r == -ETIMEDOUT || r == -EPIPE || r == -ECONNRESET ? r : send_end(e, r, &err);
    pb_scan_begin(NULL);
    set_request(e, NULL);
    request->stopped = strstr(err.text, "INTERRUPT") || r == -ETIMEDOUT;
    return r < 0 && is_spent(&err) ? -EIO : sent < 0 ? sent : 0;
}
