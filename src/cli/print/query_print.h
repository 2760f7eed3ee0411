/* query_print: the rows of a query as text for a person or a program, written as they come.
 *
 * NULL, empty strings and numbers of any size stay distinct and exact in every format: csv has nothing for
 * NULL and "" for an empty string, tsv \N, json null. The first rows of a table are held back to find its
 * column widths. Escape sequences never reach a terminal. */
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
    PB_QUERY_ARROW, /* binary: not for a terminal */
    PB_QUERY_FORMATS
};

struct pb_printer;

/* -EINVAL: no such format. */
int pb_query_format(const char *name, enum pb_query_format *ret);

struct pb_print_options {
    bool expanded; /* a table has one column a line */
    bool columns;  /* jsonl begins with {"columns": [{"name": ..., "type": ...}, ...]}, then each row is an
                      array */
    const char *if_empty; /* of tables: those without rows are left out, and this is printed if all are */
    bool screen;          /* out is drawn on the terminal: a table fits it, and notes go there too */
};

/* out: where rows go; a table on stdout is fitted to the terminal. NULL: out of memory. */
struct pb_printer *pb_printer_new(enum pb_query_format format, const struct pb_print_options *o, FILE *out);

/* Rows go to a Parquet file at this absolute path instead of out. */
int pb_printer_to_parquet(struct pb_printer *p, const char *file, struct pb_err *err);

/* The events of a result: its columns, then rows as they come, and notes about it. */
int pb_printer_columns(struct pb_printer *p, const struct pb_sql_column *columns, unsigned n);
int pb_printer_rows(struct pb_printer *p, const struct pb_batch *batch);
void pb_printer_note(struct pb_printer *p, const char *text);

/* Ends the last result. Returns an error when the output could not be written. */
int pb_printer_end(struct pb_printer *p, struct pb_err *err);
void pb_printer_free(struct pb_printer *p);
