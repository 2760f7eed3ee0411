/* broker_parquet: sends the rows of a query to the process that writes them as Parquet. */
#pragma once

#include "engine/caller/broker.h"

struct pb_parquet;

/* file: an absolute path; it is created or overwritten. */
int pb_parquet_open(const char *file, struct pb_parquet **ret, struct pb_err *err);

/* As the functions of a sink. */
int pb_parquet_columns(struct pb_parquet *p, const struct pb_sql_column *columns, unsigned n);
int pb_parquet_row(struct pb_parquet *p, const struct pb_sql_cell *cells, unsigned n);

/* Waits until the file is written. */
int pb_parquet_end(struct pb_parquet *p, struct pb_err *err);
void pb_parquet_free(struct pb_parquet *p);
