/* archive_count: how many rows of a table a query can read, archived and live, no row counted twice.
 *
 * Rows of files are counted from their footers; nothing else of them is read. Caller's side. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_archive_run;
struct pb_reader;
struct pb_table_stats;

/* Adds the archived rows of a run's table to those in its arena (stats), less the rows in both. reader,
 * index: the table in the arena; NULL: it is not there. Damaged files count as empty. */
int pb_archive_count(const char *folder, const struct pb_archive_run *run, const char *table,
                     struct pb_reader *reader, unsigned index, struct pb_table_stats *stats);

/* num_rows of a Parquet file's footer: thrift's compact protocol. -EBADMSG. */
int64_t pb_parquet_footer_rows(const uint8_t *footer, size_t size);

/* The rows of an open Parquet file, from its footer, and its size. -EBADMSG: not a Parquet file. */
int64_t pb_parquet_file_rows(int fd, uint64_t *ret_bytes);
