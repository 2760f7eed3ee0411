/* parquet: see parquet.h. */
#include "engine/writer/parquet.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "engine/shared/type_name.h"
#include "engine/shared/wire.h"
#include "engine/worker/duck.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    duckdb_database db;
    duckdb_connection connection;
    duckdb_appender appender;
    struct pb_wire in;
    int socket;
    unsigned ncolumns;
    char *copy; /* the statement that writes the file */
};

static int run(struct writer *w, const char *sql, struct pb_err *err)
{
    duckdb_result result = {0};

    int r = duck.query(w->connection, sql, &result) == DuckDBSuccess ? 0 : -EIO;
    if (r < 0)
        pb_fail(err, r, "%s", duck.result_error(&result) ? duck.result_error(&result) : "DuckDB failed");
    duck.destroy_result(&result);
    return r;
}

static void put_quoted(FILE *out, const char *text, size_t length, char quote)
{
    putc(quote, out);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == quote)
            putc(quote, out);
        putc(text[i], out);
    }
    putc(quote, out);
}

/* How a column that came as text is written: as its type, or the nearest that every engine reads. */
static void put_cast(FILE *out, unsigned i, const char *type, uint32_t length)
{
    static const char *const others[][2] = {{"HUGEINT", "DECIMAL(38,0)"},
                                            {"UHUGEINT", "DECIMAL(38,0)"},
                                            {"UBIGINT", "DECIMAL(20,0)"},
                                            {"INTERVAL", "VARCHAR"},
                                            {"UUID", "VARCHAR"}};
    bool nested = length > 0 &&
                  (type[length - 1] == ']' || (type[length - 1] == ')' && strncmp(type, "DECIMAL", 7) != 0));

    for (size_t k = 0; k < sizeof(others) / sizeof(others[0]); k++)
        if (strlen(others[k][0]) == length && strncmp(type, others[k][0], length) == 0) {
            fprintf(out, "CAST(c%u AS %s)", i, others[k][1]);
            return;
        }
    /* Lists, structs and maps came as JSON. */
    fprintf(out, nested ? "CAST(CAST(c%u AS JSON) AS %.*s)" : "CAST(c%u AS %.*s)", i, (int)length, type);
}

/* Makes the table that rows go to, and the statement that casts and writes them. */
static int take_columns(struct writer *w, const char *path, struct pb_err *err)
{
    char *create = NULL;
    size_t sizes[2];
    FILE *make = open_memstream(&create, &sizes[0]), *copy = open_memstream(&w->copy, &sizes[1]);

    w->ncolumns = pb_wire_u32(&w->in);
    if (!make || !copy || w->ncolumns == 0 || w->ncolumns > 1u << 16)
        return pb_fail(err, -EBADMSG, "the result has no columns to write");
    fputs("CREATE TABLE rows (", make);
    fputs("COPY (SELECT ", copy);
    for (unsigned i = 0; i < w->ncolumns; i++) {
        uint32_t name_length, type_length;
        const char *name = pb_wire_text(&w->in, &name_length), *type = pb_wire_text(&w->in, &type_length);
        if (!name || !type || !pb_type_name_is_good(type, type_length))
            return pb_fail(err, -EBADMSG, "the columns of the result make no sense");
        fprintf(make, "%sc%u VARCHAR", i ? ", " : "", i);
        fputs(i ? ", " : "", copy);
        put_cast(copy, i, type, type_length);
        fputs(" AS ", copy);
        put_quoted(copy, name, name_length, '"');
    }
    fputs(")", make);
    fputs(" FROM rows) TO ", copy);
    put_quoted(copy, path, strlen(path), '\'');
    fputs(" (FORMAT parquet, COMPRESSION zstd)", copy);
    int r = fclose(make) == 0 && fclose(copy) == 0 ? run(w, create, err) : -ENOMEM;
    free(create);
    if (r == 0 && duck.appender_create(w->connection, NULL, "rows", &w->appender) != DuckDBSuccess)
        r = pb_fail(err, -EIO, "DuckDB takes no rows");
    return r;
}

static int take_rows(struct writer *w, struct pb_err *err)
{
    uint32_t n = pb_wire_u32(&w->in), length;

    for (uint32_t row = 0; row < n; row++) {
        for (unsigned i = 0; i < w->ncolumns; i++) {
            if (w->in.at >= w->in.size)
                return pb_fail(err, -EBADMSG, "a row is cut off");
            uint8_t kind = w->in.data[w->in.at++];
            const char *text = pb_wire_text(&w->in, &length);
            if (!text)
                return pb_fail(err, -EBADMSG, "a row is cut off");
            duckdb_state state = kind == PB_SQL_NULL ? duck.append_null(w->appender)
                                                     : duck.append_varchar_length(w->appender, text, length);
            if (state != DuckDBSuccess)
                return pb_fail(err, -EIO, "a value cannot be written: %s", duck.appender_error(w->appender));
        }
        if (duck.appender_end_row(w->appender) != DuckDBSuccess)
            return pb_fail(err, -EIO, "a row cannot be written: %s", duck.appender_error(w->appender));
    }
    return 0;
}

static int finish(struct writer *w, struct pb_err *err)
{
    if (!w->appender)
        return pb_fail(err, -ENODATA, "there is no result to write");
    if (duck.appender_destroy(&w->appender) != DuckDBSuccess)
        return pb_fail(err, -EIO, "the rows cannot be written");
    return run(w, w->copy, err);
}

/* Until DONE. */
static int take_all(struct writer *w, const char *path, struct pb_err *err)
{
    for (;;) {
        int r = pb_wire_receive(w->socket, &w->in, 0);
        if (r < 0)
            return pb_fail(err, r, "the rows stopped coming: %s", strerror(-r));
        if (w->in.type == PB_SQL_DONE)
            return finish(w, err);
        if (w->in.type == PB_SQL_COLUMNS && !w->appender)
            r = take_columns(w, path, err);
        else if (w->in.type == PB_SQL_ROWS && w->appender)
            r = take_rows(w, err);
        else
            r = pb_fail(err, -EINVAL, "a Parquet file holds one result; the statements have several");
        if (r < 0)
            return r;
    }
}

int pb_parquet_write(int socket, const char *path)
{
    struct writer w = {.socket = socket};
    struct pb_err err = {0};
    struct pb_wire out = {0};
    char *why = NULL;

    int r = pb_duck_load(&err);
    if (r == 0 && (duck.open_ext(":memory:", &w.db, NULL, &why) != DuckDBSuccess ||
                   duck.connect(w.db, &w.connection) != DuckDBSuccess))
        r = pb_fail(&err, -EIO, "DuckDB did not open: %s", why ? why : "no reason given");
    if (r == 0)
        r = run(&w, "SET TimeZone = 'UTC'", &err);
    if (r == 0)
        r = take_all(&w, path, &err);
    pb_wire_begin(&out, r < 0 ? PB_SQL_ERROR : PB_SQL_DONE);
    const char *text = r < 0 ? pb_err_text(&err, r) : "";
    pb_wire_put_u32(&out, (uint32_t)-r);
    pb_wire_put_text(&out, text, strlen(text));
    pb_wire_send(socket, &out, 0);
    return r < 0;
}
