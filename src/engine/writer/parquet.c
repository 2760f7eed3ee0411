/* parquet: see parquet.h. */
#include "engine/writer/parquet.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/limits.h"
#include "engine/shared/type_name.h"
#include "engine/shared/wire.h"
#include "engine/worker/sandbox.h"
#include "engine/writer/parquet_db.h"
#include "table/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VECTOR = 2048 };
/* DuckDB's own memory; it holds one group of rows at a time. */
static const uint64_t MOST_MEMORY = 1ull << 30, LEAST_MEMORY = 256ull << 20;

struct parquet_writer {
    struct pb_writer duckdb;
    struct pb_wire in;
    int socket;
    int file; /* the output, open: its path may be removed or replaced meanwhile */
    unsigned ncolumns;
    uint32_t left;     /* rows left in the current message */
    bool done;         /* there are no more rows */
    struct pb_err err; /* why rows ended early */
    int failed;
};

/* The only one in this process; DuckDB's callbacks use it. */
static struct parquet_writer writer = {.socket = -1, .file = -1};

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

/* Writes a column that came as text: cast to its type, or the nearest that every engine reads. */
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
    /* Lists, structs and maps come as JSON. */
    fprintf(out, nested ? "CAST(CAST(c%u AS JSON) AS %.*s)" : "CAST(c%u AS %.*s)", i, (int)length, type);
}

/* Writes the statement that casts rows and writes them as they come. */
static int put_copy(struct parquet_writer *w, FILE *copy, struct pb_err *err)
{
    w->ncolumns = pb_wire_u32(&w->in);
    if (w->ncolumns == 0 || w->ncolumns > 1u << 16)
        return pb_fail(err, -EBADMSG, "the result has no columns to write");
    fputs("COPY (SELECT ", copy);
    for (unsigned i = 0; i < w->ncolumns; i++) {
        uint32_t name_length, type_length;
        const char *name = pb_wire_text(&w->in, &name_length), *type = pb_wire_text(&w->in, &type_length);
        if (!name || !type || !pb_type_name_is_good(type, type_length))
            return pb_fail(err, -EBADMSG, "the columns of the result are invalid");
        fputs(i ? ", " : "", copy);
        put_cast(copy, i, type, type_length);
        fputs(" AS ", copy);
        put_quoted(copy, name, name_length, '"');
    }
    /* No temporary file, which would be left when the process is killed, or renamed later. */
    fprintf(copy,
            " FROM pb_rows()) TO '" PB_SANDBOX_FILE
            "%d' (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)",
            w->file);
    return 0;
}

/* --- the table function that gives DuckDB the rows --- */

static void bind_rows(duckdb_bind_info info)
{
    duckdb_logical_type text = duck.create_logical_type(DUCKDB_TYPE_VARCHAR);
    char name[16];

    for (unsigned i = 0; i < writer.ncolumns; i++) {
        snprintf(name, sizeof(name), "c%u", i);
        duck.bind_add_result_column(info, name, text);
    }
    duck.destroy_logical_type(&text);
}

static void init_rows(duckdb_init_info info)
{
    duck.init_set_max_threads(info, 1);
}

static int take_row(struct parquet_writer *w, duckdb_vector *vectors, idx_t row, struct pb_err *err)
{
    uint32_t length;

    for (unsigned i = 0; i < w->ncolumns; i++) {
        if (w->in.at >= w->in.size)
            return pb_fail(err, -EBADMSG, "a row is cut off");
        uint8_t kind = w->in.data[w->in.at++];
        const char *text = pb_wire_text(&w->in, &length);
        if (!text || (kind != PB_SQL_NULL && !pb_utf8_valid(text, length)))
            return pb_fail(err, -EBADMSG, text ? "a value is no text" : "a row is cut off");
        if (kind == PB_SQL_NULL) {
            duck.vector_ensure_validity_writable(vectors[i]);
            duck.vector_get_validity(vectors[i])[row / 64] &= ~(UINT64_C(1) << row % 64);
        } else {
            duck.vector_assign_string_element_len(vectors[i], row, text, length);
        }
    }
    return 0;
}

/* Waits for the next message with rows; sets done at the end. */
static int receive_rows(struct parquet_writer *w, struct pb_err *err)
{
    int r = pb_wire_receive(w->socket, &w->in, 0);
    if (r < 0)
        return pb_fail(err, r, "the rows stopped coming: %s", strerror(-r));
    w->done = w->in.type == PB_SQL_DONE;
    if (!w->done && w->in.type != PB_SQL_ROWS)
        return pb_fail(err, -EINVAL, "a Parquet file holds one result; the statements have several");
    w->left = w->done ? 0 : pb_wire_u32(&w->in);
    return 0;
}

static void give_rows(duckdb_function_info info, duckdb_data_chunk chunk)
{
    struct parquet_writer *w = &writer;
    duckdb_vector *vectors = calloc(w->ncolumns, sizeof(void *));
    int r = vectors ? 0 : pb_fail(&w->err, -ENOMEM, "out of memory");
    idx_t n = 0;

    for (unsigned i = 0; r == 0 && i < w->ncolumns; i++)
        vectors[i] = duck.data_chunk_get_vector(chunk, i);
    while (r == 0 && n < VECTOR && !w->done) {
        if (w->left == 0) {
            /* Rows at hand are passed on before waiting. */
            if (n)
                break;
            r = receive_rows(w, &w->err);
            continue;
        }
        r = take_row(w, vectors, n, &w->err);
        w->left--;
        n++;
    }
    free(vectors);
    if (r < 0) {
        w->failed = r;
        duck.function_set_error(info, w->err.text);
        n = 0;
    }
    duck.data_chunk_set_size(chunk, r < 0 ? 0 : n);
}

static int register_rows(struct parquet_writer *w)
{
    duckdb_table_function f = duck.create_table_function();

    duck.table_function_set_name(f, "pb_rows");
    duck.table_function_set_bind(f, bind_rows);
    duck.table_function_set_init(f, init_rows);
    duck.table_function_set_function(f, give_rows);
    duckdb_state state = duck.register_table_function(w->duckdb.connection, f);
    duck.destroy_table_function(&f);
    return state == DuckDBSuccess ? 0 : -EIO;
}

/* Runs from the columns to the end. Rows are written as they come: an export of any size needs the memory of
 * one group of rows. */
static int write_all(struct parquet_writer *w, struct pb_err *err)
{
    _cleanup_free_ char *sql = NULL;
    size_t size;

    int r = pb_wire_receive(w->socket, &w->in, 0);
    if (r < 0)
        return pb_fail(err, r, "the rows stopped coming: %s", strerror(-r));
    if (w->in.type != PB_SQL_COLUMNS)
        return pb_fail(err, -ENODATA, "there is no result to write");
    FILE *copy = open_memstream(&sql, &size);
    if (!copy)
        return pb_fail(err, -ENOMEM, "out of memory");
    r = put_copy(w, copy, err);
    if (fclose(copy) != 0 && r == 0)
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = pb_writer_run(&w->duckdb, sql, err);
    /* Our own reason is the better message. */
    if (w->failed)
        r = pb_fail(err, w->failed, "%s", w->err.text);
    return r;
}

static int open_database(struct parquet_writer *w, struct pb_err *err)
{
    struct pb_limits limits;

    pb_limits_read(&limits);
    pb_limits_volunteer();
    uint64_t memory = limits.memory / 4;
    memory = memory > MOST_MEMORY ? MOST_MEMORY : memory < LEAST_MEMORY ? LEAST_MEMORY : memory;
    int r = pb_writer_open(&w->duckdb, memory, err);
    if (r == 0 && register_rows(w) < 0)
        r = pb_fail(err, -EIO, "DuckDB did not take our functions");
    return r;
}

int pb_parquet_write(int socket, const char *path)
{
    struct parquet_writer *w = &writer;
    struct pb_err err = {0};
    struct pb_wire out = {0};

    w->socket = socket;
    /* The caller has created the file, and removes it when it gives up: a removed file is not created
     * again. */
    w->file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    int r = w->file < 0 ? pb_fail(&err, -errno, "%s cannot be written: %s", path, strerror(errno))
                        : open_database(w, &err);
    if (r == 0)
        r = write_all(w, &err);
    pb_wire_begin(&out, r < 0 ? PB_SQL_ERROR : PB_SQL_DONE);
    const char *text = r < 0 ? pb_err_text(&err, r) : "";
    pb_wire_put_u32(&out, (uint32_t)-r);
    pb_wire_put_text(&out, text, strlen(text));
    pb_wire_send(socket, &out, 0);
    return r < 0;
}
