/* statement: one statement, from its text to its rows on the socket.
 *
 * Only what reads is let through, by the type that DuckDB itself finds. Aggregates beside bare columns
 * without a GROUP BY, which people write, run as GROUP BY ALL, and a note says so. */
#include "engine/worker/internal.h"

#include "base/cleanup.h"
#include "engine/shared/text.h"
#include "engine/worker/values.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { BLOCK = 256 << 10, MAX_REGROUP = 16 };

static int refuse(struct pb_err *err)
{
    return pb_fail(
        err, -EPERM,
        "only statements that read are allowed here: SELECT, WITH, VALUES, FROM, PIVOT, DESCRIBE, SHOW, "
        "SUMMARIZE and EXPLAIN");
}

/* Prepares one of the statements that the text holds. */
static int prepare_one(struct pb_engine *e, duckdb_extracted_statements all, idx_t i,
                       duckdb_prepared_statement *ret, struct pb_err *err)
{
    if (duck.prepare_extracted_statement(e->connection, all, i, ret) == DuckDBSuccess)
        return 0;
    const char *why = *ret ? duck.prepare_error(*ret) : NULL;
    pb_fail(err, -EINVAL, "%s", why ? why : "the statement cannot be prepared");
    duck.destroy_prepare(ret);
    return -EINVAL;
}

/* The statement that an EXPLAIN explains: what follows it, ANALYZE and options in parentheses. NULL: it is no
 * EXPLAIN. A comment is none either, whatever it says. */
static const char *explained(const char *sql)
{
    const char *p = pb_sql_after_word(sql, "explain"), *analyzed = p ? pb_sql_after_word(p, "analyze") : NULL,
               *inside, *options = p ? pb_sql_after_parentheses(p, &inside) : NULL;

    /* "(SELECT ...)" is no list of options. */
    if (options && (pb_sql_after_word(inside, "analyze") || pb_sql_after_word(inside, "format")))
        return options;
    return analyzed ? analyzed : p;
}

/* EXPLAIN ANALYZE runs what it explains, whatever that is: it must be a SELECT itself. */
static int check_explained(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    duckdb_extracted_statements all = NULL;
    duckdb_prepared_statement inner = NULL;

    const char *inside = explained(sql);
    idx_t n = inside ? duck.extract_statements(e->connection, inside, &all) : 0;
    int r = n == 1 ? prepare_one(e, all, 0, &inner, err) : refuse(err);
    if (r == 0 && duck.prepared_statement_type(inner) != DUCKDB_STATEMENT_TYPE_SELECT)
        r = refuse(err);
    if (inner)
        duck.destroy_prepare(&inner);
    duck.destroy_extracted(&all);
    return r;
}

static int check_type(struct pb_engine *e, const char *sql, duckdb_prepared_statement statement, bool last,
                      struct pb_err *err)
{
    duckdb_statement_type type = duck.prepared_statement_type(statement);

    if (type == DUCKDB_STATEMENT_TYPE_SELECT)
        return 0;
    if (type == DUCKDB_STATEMENT_TYPE_EXPLAIN)
        return check_explained(e, sql, err);
    /* PIVOT without a list makes a temporary type of the values it finds first; nobody wrote CREATE then. */
    if (!last && type == DUCKDB_STATEMENT_TYPE_CREATE &&
        (pb_sql_has_word(sql, "pivot") || pb_sql_has_word(sql, "pivot_wider")) &&
        !pb_sql_has_word(sql, "create"))
        return 0;
    return refuse(err);
}

/* --- rows --- */

struct result {
    duckdb_result r;
    struct pb_value_type **types;
    idx_t ncolumns;
};

static void release(struct result *result)
{
    for (idx_t i = 0; result->types && i < result->ncolumns; i++)
        pb_value_type_free(result->types[i]);
    free(result->types);
    duck.destroy_result(&result->r);
}

static int send_columns(struct pb_engine *e, struct result *result)
{
    result->ncolumns = duck.column_count(&result->r);
    result->types = calloc(result->ncolumns + 1, sizeof(void *));
    if (!result->types)
        return -ENOMEM;
    pb_wire_begin(&e->out, PB_SQL_COLUMNS);
    pb_wire_put_u32(&e->out, (uint32_t)result->ncolumns);
    for (idx_t i = 0; i < result->ncolumns; i++) {
        result->types[i] = pb_value_type_new(duck.column_logical_type(&result->r, i));
        _cleanup_free_ char *type = result->types[i] ? pb_value_type_name(result->types[i]) : NULL;
        const char *name = duck.column_name(&result->r, i);
        if (!type)
            return -ENOMEM;
        pb_wire_put_text(&e->out, name, strlen(name));
        pb_wire_put_text(&e->out, type, strlen(type));
    }
    return pb_engine_send(e, &e->out);
}

static int flush(struct pb_engine *e, uint32_t *rows)
{
    if (*rows == 0)
        return 0;
    if (e->out.failed)
        return -EMSGSIZE;
    memcpy(e->out.data, rows, sizeof(*rows));
    *rows = 0;
    return pb_engine_send(e, &e->out);
}

static void begin_block(struct pb_engine *e)
{
    pb_wire_begin(&e->out, PB_SQL_ROWS);
    pb_wire_put_u32(&e->out, 0);
}

static int send_chunk(struct pb_engine *e, const struct result *result, duckdb_data_chunk chunk,
                      uint32_t *rows)
{
    idx_t n = duck.data_chunk_get_size(chunk);
    int r = 0;

    for (idx_t row = 0; r == 0 && row < n; row++) {
        for (idx_t i = 0; i < result->ncolumns; i++)
            pb_value_put(&e->out, result->types[i], duck.data_chunk_get_vector(chunk, i), row);
        ++*rows;
        if (e->out.size >= BLOCK || e->out.failed) {
            r = flush(e, rows);
            begin_block(e);
        }
    }
    return r;
}

static int send_result(struct pb_engine *e, struct result *result, struct pb_err *err)
{
    uint32_t rows = 0;

    int r = send_columns(e, result);
    begin_block(e);
    while (r == 0) {
        duckdb_data_chunk chunk = duck.fetch_chunk(result->r);
        if (!chunk)
            break;
        r = send_chunk(e, result, chunk, &rows);
        duck.destroy_data_chunk(&chunk);
    }
    if (r == 0)
        r = flush(e, &rows);
    if (r == -EMSGSIZE)
        return pb_fail(err, r, "a row is larger than %u MB", PB_SQL_MAX_MESSAGE >> 20);
    return r;
}

/* --- running --- */

static int execute(struct pb_engine *e, duckdb_prepared_statement statement, bool last, struct pb_err *err)
{
    struct result result = {0};
    int r;

    if (duck.execute_prepared(statement, &result.r) != DuckDBSuccess) {
        const char *why = duck.result_error(&result.r);
        r = pb_fail(err, -EINVAL, "%s", why ? why : "the statement failed");
    } else {
        r = last ? send_result(e, &result, err) : 0;
    }
    release(&result);
    return r;
}

static int run_text(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    duckdb_extracted_statements all = NULL;
    int r = 0;

    idx_t n = duck.extract_statements(e->connection, sql, &all);
    if (n == 0) {
        const char *why = duck.extract_statements_error(all);
        r = pb_fail(err, -EINVAL, "%s", why ? why : "there is no statement");
    }
    for (idx_t i = 0; r == 0 && i < n; i++) {
        duckdb_prepared_statement statement = NULL;
        r = prepare_one(e, all, i, &statement, err);
        if (r == 0)
            r = check_type(e, sql, statement, i + 1 == n, err);
        if (r == 0)
            r = execute(e, statement, i + 1 == n, err);
        if (statement)
            duck.destroy_prepare(&statement);
    }
    duck.destroy_extracted(&all);
    return r;
}

/* Runs a statement until the writer has not overtaken it: nothing is sent before all is read, so nobody
 * notices. The last time everything is copied first, and cannot be overtaken. */
static int run_steadily(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    int r = run_text(e, sql, err);

    for (enum pb_cat_copies copies = PB_COPY_OLDEST; copies <= PB_COPY_ALL; copies++) {
        if (!pb_scan_must_repeat() || r == 0)
            break;
        *err = (struct pb_err){0};
        e->reruns++;
        pb_engine_do(e, "ROLLBACK", NULL);
        r = pb_prepare_again(e, copies, err);
        if (r == 0)
            r = pb_engine_do(e, "BEGIN TRANSACTION READ ONLY", err);
        if (r == 0)
            r = run_text(e, sql, err);
    }
    return r;
}

/* The tree with the k-th SELECT told to group by whatever is no aggregate; NULL: there are not so many. */
static char *regroup(const char *tree, unsigned k)
{
    static const char from[] = "\"aggregate_handling\":\"STANDARD_HANDLING\"",
                      to[] = "\"aggregate_handling\":\"FORCE_AGGREGATES\"";
    const char *at = tree;
    char *text;

    for (unsigned i = 0; (at = strstr(at, from)) && i < k; i++)
        at += sizeof(from) - 1;
    if (!at || asprintf(&text, "%.*s%s%s", (int)(at - tree), tree, to, at + sizeof(from) - 1) < 0)
        return NULL;
    return text;
}

static int begin_again(struct pb_engine *e, struct pb_err *err)
{
    pb_engine_do(e, "ROLLBACK", NULL);
    return pb_engine_do(e, "BEGIN TRANSACTION READ ONLY", err);
}

/* Tries GROUP BY ALL in each SELECT in turn, outermost last as the tree has it. err keeps the first failure.
 */
static int run_grouped(struct pb_engine *e, const char *sql, int failed)
{
    _cleanup_free_ char *tree = NULL;

    if (begin_again(e, NULL) < 0 || pb_engine_tree(e, sql, &tree) < 0)
        return failed;
    for (unsigned k = 0; k < MAX_REGROUP; k++) {
        _cleanup_free_ char *changed = regroup(tree, k), *text = NULL;
        struct pb_err ignored;
        if (!changed)
            break;
        if (pb_engine_ask(e, "SELECT json_deserialize_sql($1::JSON)", changed, strlen(changed), &text, NULL) <
                0 ||
            !text)
            continue;
        if (run_steadily(e, text, &ignored) == 0) {
            pb_engine_note(e, "columns stand beside aggregates without GROUP BY: taken as GROUP BY ALL");
            return 0;
        }
        if (begin_again(e, NULL) < 0)
            break;
    }
    return failed;
}

int pb_statement_run(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    int r = run_steadily(e, sql, err);

    if (r == -EINVAL && strstr(err->text, "must appear in the GROUP BY clause"))
        r = run_grouped(e, sql, r);
    return r;
}
