/* parquet_db: see parquet_db.h. */
#include "engine/writer/parquet_db.h"

#include "base/err.h"
#include "engine/worker/sandbox.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Address space, most of it never used. */
static const uint64_t MOST_SPACE = 8ull << 30;

int pb_writer_run(struct pb_writer *w, const char *sql, struct pb_err *err)
{
    duckdb_result result = {0};

    int r = duck.query(w->connection, sql, &result) == DuckDBSuccess ? 0 : -EIO;
    const char *why = r < 0 ? duck.result_error(&result) : NULL;
    if (r < 0 && why && strstr(why, "No space left"))
        r = pb_fail(err, -ENOSPC, "the disk is full");
    else if (r < 0)
        pb_fail(err, r, "%.300s", why ? why : "DuckDB failed");
    duck.destroy_result(&result);
    return r;
}

int pb_writer_open(struct pb_writer *w, uint64_t memory, struct pb_err *err)
{
    char *why = NULL, sql[80];
    const char *const words[] = {"SET TimeZone = 'UTC'", "SET threads = 1", "SET temp_directory = ''", sql};

    int r = pb_duck_load(err);
    if (r == 0)
        r = pb_sandbox_bound_memory(MOST_SPACE, err);
    if (r == 0)
        r = pb_sandbox_enter_writer(err);
    if (r == 0 && (duck.open_ext(":memory:", &w->db, NULL, &why) != DuckDBSuccess ||
                   duck.connect(w->db, &w->connection) != DuckDBSuccess))
        r = pb_fail(err, -EIO, "DuckDB did not open: %s", why ? why : "no reason given");
    snprintf(sql, sizeof(sql), "SET memory_limit = '%lluMiB'", (unsigned long long)(memory >> 20));
    for (size_t i = 0; r == 0 && i < sizeof(words) / sizeof(words[0]); i++)
        r = pb_writer_run(w, words[i], err);
    return r;
}
