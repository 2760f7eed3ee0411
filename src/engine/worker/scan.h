/* scan: the table function that gives DuckDB the rows of a snapshot.
 *
 * pb_scan('schema.table') over the catalog of the request that runs: the worker runs one at a time. Columns
 * that a query does not use are not touched; strings are ENUM indices where the catalog made them so. */
#pragma once

#include "engine/worker/catalog.h"

/* Called by a scan of a table that was not prepared before the statement began: makes its snapshot, with all
 * columns as strings. Writes a sentence into err on failure. */
typedef int pb_scan_prepare(void *arg, struct pb_cat_table *t, struct pb_err *err);

struct pb_scan_request {
    struct pb_catalog *catalog;
    pb_scan_prepare *prepare;
    void *arg;
    bool raw_times;   /* nanoseconds as numbers, for files */
    unsigned threads; /* that may read one table at once; 1 keeps the rows in order */
};

int pb_scan_register(duckdb_connection connection);

/* The request that scans are for, until the next call; NULL: none. */
void pb_scan_begin(const struct pb_scan_request *now);

/* Whether a scan failed since the last call because its snapshot is not what it needs: a segment that was
 * left until it is scanned has changed, or the statement wants a column that was left out (its table is
 * `whole` now). The statement must run again, on another snapshot. */
bool pb_scan_must_repeat(void);

/* Rows handed over since pb_scan_begin, and those of all scans that were begun: a progress bar. From any
 * thread. */
uint64_t pb_scan_rows(void);
uint64_t pb_scan_rows_known(void);
