/* parquet_db: DuckDB in a process that writes Parquet files. It runs statements of ours only, in a sandbox:
 * what it reads, an arena or rows of a worker, is not trusted. */
#pragma once

#include "engine/worker/duck.h"

#include <stdint.h>

struct pb_err;

struct pb_writer {
    duckdb_database db;
    duckdb_connection connection;
};

/* Enters the sandbox, which can open no file, and opens DuckDB with so much memory, in bytes. */
int pb_writer_open(struct pb_writer *w, uint64_t memory, struct pb_err *err);
int pb_writer_run(struct pb_writer *w, const char *sql, struct pb_err *err);
