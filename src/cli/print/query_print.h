/* query_print: the rows of a query as text for a person or a program, written as they come.
 *
 * NULL, empty strings and numbers of any size stay apart and exact in every format: csv has nothing for NULL
 * and "" for an empty string, tsv \N, json null. Of a table the first rows are kept, to know its widths. To a
 * terminal nothing goes that it would obey. */
#pragma once

#include "cli/cli.h"
#include "engine/caller/broker.h"

#include <stdio.h>

enum pb_query_format {
    PB_QUERY_TABLE,
    PB_QUERY_JSON,
    PB_QUERY_JSONL,
    PB_QUERY_CSV,
    PB_QUERY_TSV,
    PB_QUERY_MARKDOWN,
    PB_QUERY_PARQUET,
    PB_QUERY_FORMATS
};

struct pb_printer;

/* -EINVAL: there is no format of that name. */
int pb_query_format(const char *name, enum pb_query_format *ret);

struct pb_print_options {
    bool expanded; /* a table has one column a line */
    bool columns;  /* jsonl begins with {"columns": [{"name": ..., "type": ...}, ...]}, then each row is an
                      array */
    bool screen;   /* out is drawn on the terminal: a table fits it, and notes go there too */
};

/* out: where to; a table that goes to stdout fits the terminal. NULL: out of memory. */
struct pb_printer *pb_printer_new(enum pb_query_format format, const struct pb_print_options *o, FILE *out);

/* Rows go to a Parquet file at this absolute path instead. */
int pb_printer_to_parquet(struct pb_printer *p, const char *file, struct pb_err *err);

/* A result begins; then its rows, as they come; a sentence beside them. */
int pb_printer_columns(struct pb_printer *p, const struct pb_sql_column *columns, unsigned n);
int pb_printer_rows(struct pb_printer *p, const struct pb_batch *batch);
void pb_printer_note(struct pb_printer *p, const char *text);

/* Ends the last result. 0, or why it could not be written. */
int pb_printer_end(struct pb_printer *p, struct pb_err *err);
void pb_printer_free(struct pb_printer *p);
