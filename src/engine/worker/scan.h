/* scan: the table function that gives DuckDB the rows of a snapshot.
 *
 * pb_scan('schema.table') over the catalog of the current request: the worker runs one at a time. Columns
 * that a query does not use are not read; strings are ENUM indices where the catalog made ENUMs. */
#pragma once

#include "engine/worker/catalog.h"

/* Called by a scan of a table that was not prepared before the statement began: takes its snapshot, with all
 * columns as strings. Writes a sentence into err on failure. */
typedef int pb_scan_prepare(void *arg, struct pb_cat_table *t, struct pb_err *err);

struct pb_scan_request {
    struct pb_catalog *catalog;
    pb_scan_prepare *prepare;
    void *arg;
    bool raw_times;   /* times as numbers of nanoseconds, for files */
    unsigned threads; /* how many may read one table at once; 1 keeps the order of rows */
};

int pb_scan_register(duckdb_connection connection);

/* Sets the request of the following scans; NULL: none. */
void pb_scan_begin(const struct pb_scan_request *now);

/* Whether a scan since the last call failed because of its snapshot: a deferred segment has changed, or the
 * statement reads a column that was left out (its table is `whole` now). The statement must run again, on
 * another snapshot. */
bool pb_scan_must_repeat(void);

/* Rows passed on since pb_scan_begin, and rows of all started scans: for a progress bar. Any thread. */
uint64_t pb_scan_rows(void);
uint64_t pb_scan_rows_known(void);
