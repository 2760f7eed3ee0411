/* statement: runs one statement and sends its rows.
 *
 * Only reading statements are allowed, by the type that DuckDB itself reports. Aggregates beside plain
 * columns without GROUP BY run as GROUP BY ALL, and a note says so. Rows are sent while the statement runs
 * (outgoing.h): a slow caller delays the statement, and costs no memory. */
#include "engine/worker/engine_impl.h"

#include "base/cleanup.h"
#include "engine/shared/sql_text.h"
#include "engine/worker/outgoing.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_REGROUP = 16 };

static int refuse_statement(struct pb_err *err)
{
    return pb_fail(
        err, -EPERM,
        "only statements that read are allowed here: SELECT, WITH, VALUES, FROM, PIVOT, DESCRIBE, SHOW, "
        "SUMMARIZE and EXPLAIN");
}

/* Prepares one of the statements in the text. */
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

/* The statement that an EXPLAIN explains: the text after EXPLAIN, ANALYZE and options in parentheses. NULL:
 * it is no EXPLAIN. A comment is not, whatever it says. */
const char *pb_statement_explained(const char *sql)
{
    const char *p = pb_sql_after_word(sql, "explain"), *analyzed = p ? pb_sql_after_word(p, "analyze") : NULL,
               *inside, *options = p ? pb_sql_after_parentheses(p, &inside) : NULL;

    /* "(SELECT ...)" is not a list of options. */
    if (options && (pb_sql_after_word(inside, "analyze") || pb_sql_after_word(inside, "format")))
        return options;
    return analyzed ? analyzed : p;
}

/* EXPLAIN ANALYZE runs the statement that it explains: that must be a SELECT. */
static int check_explained(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    duckdb_extracted_statements all = NULL;
    duckdb_prepared_statement inner = NULL;

    const char *inside = pb_statement_explained(sql);
    idx_t n = inside ? duck.extract_statements(e->connection, inside, &all) : 0;
    int r = n == 1 ? prepare_one(e, all, 0, &inner, err) : refuse_statement(err);
    if (r == 0 && duck.prepared_statement_type(inner) != DUCKDB_STATEMENT_TYPE_SELECT)
        r = refuse_statement(err);
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
    /* PIVOT without a list creates a temporary type of the values found: that CREATE is DuckDB's own. */
    if (!last && type == DUCKDB_STATEMENT_TYPE_CREATE &&
        (pb_sql_has_word(sql, "pivot") || pb_sql_has_word(sql, "pivot_wider")) &&
        !pb_sql_has_word(sql, "create"))
        return 0;
    return refuse_statement(err);
}

/* --- running --- */

static int execute(struct pb_engine *e, duckdb_prepared_statement statement, bool last, struct pb_err *err)
{
    duckdb_result result = {0};
    int r;

    duckdb_state state = last && e->run != PB_RUN_WHOLE ? duck.execute_prepared_streaming(statement, &result)
                                                        : duck.execute_prepared(statement, &result);
    if (state != DuckDBSuccess) {
        const char *why = duck.result_error(&result);
        r = pb_fail(err, -EINVAL, "%s", why ? why : "the statement failed");
    } else {
        r = last ? pb_outgoing_send(e, &result, err) : 0;
    }
    duck.destroy_result(&result);
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

/* Runs a statement until no segment was recycled under it: its rows are held back, so the caller has seen
 * none of them. The last time everything is copied first. */
static int run_repeatedly(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    int r = run_text(e, sql, err);

    for (enum pb_cat_copies copies = PB_COPY_OLDEST; copies <= PB_COPY_ALL; copies++) {
        if (r == 0 || r == PB_RUN_MUST_SETTLE || !pb_scan_must_repeat())
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

/* Rows must be sent now, and after that the statement cannot run again: everything it may still read is
 * copied first. If that is too large the statement runs to its end before rows are sent. */
static int settle_tables(struct pb_engine *e, struct pb_err *err)
{
    pb_engine_do(e, "ROLLBACK", NULL);
    int r = pb_prepare_settled(e, err);
    e->run = r == -E2BIG ? PB_RUN_WHOLE : PB_RUN_SETTLED;
    if (r == -E2BIG) {
        *err = (struct pb_err){0};
        r = pb_prepare_again(e, PB_COPY_OPEN, err);
    }
    return r < 0 ? r : pb_engine_do(e, "BEGIN TRANSACTION READ ONLY", err);
}

static int run_steadily(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    e->run = PB_RUN_HELD;
    int r = run_repeatedly(e, sql, err);
    if (r != PB_RUN_MUST_SETTLE)
        return r;
    *err = (struct pb_err){0};
    r = settle_tables(e, err);
    if (r == 0)
        r = run_repeatedly(e, sql, err);
    return r;
}

/* The tree with the k-th SELECT changed to GROUP BY ALL; NULL: there are fewer. */
static char *group_by_all(const char *tree, unsigned k)
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

static int restart_transaction(struct pb_engine *e, struct pb_err *err)
{
    pb_engine_do(e, "ROLLBACK", NULL);
    return pb_engine_do(e, "BEGIN TRANSACTION READ ONLY", err);
}

/* Tries GROUP BY ALL in each SELECT in turn, the outermost last as the tree has it. err keeps the first
 * failure. */
static int run_grouped(struct pb_engine *e, const char *sql, int failed)
{
    _cleanup_free_ char *tree = NULL;

    if (restart_transaction(e, NULL) < 0 || pb_engine_tree(e, sql, &tree) < 0)
        return failed;
    for (unsigned k = 0; k < MAX_REGROUP; k++) {
        _cleanup_free_ char *changed = group_by_all(tree, k), *text = NULL;
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
        if (restart_transaction(e, NULL) < 0)
            break;
    }
    return failed;
}

/* When one thread fails while rows are sent, DuckDB stops the others, and in one of a hundred runs reports
 * that instead of the error. The statement runs again for its error; if it does not fail a second time, err
 * is unchanged. */
static void find_reason(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    struct pb_err again = {0};

    e->run = PB_RUN_UNSEEN;
    for (int i = 0; i < 3 && !pb_engine_was_stopped(e); i++)
        if (restart_transaction(e, NULL) == 0 && run_text(e, sql, &again) == -EINVAL &&
            !strstr(again.text, "INTERRUPT")) {
            *err = again;
            break;
        }
}

int pb_statement_run(struct pb_engine *e, const char *sql, struct pb_err *err)
{
    int r = run_steadily(e, sql, err);

    if (r == -EINVAL && strstr(err->text, "INTERRUPT") && !pb_engine_was_stopped(e))
        find_reason(e, sql, err);
    if (r == -EINVAL && strstr(err->text, "must appear in the GROUP BY clause"))
        r = run_grouped(e, sql, r);
    return r;
}
