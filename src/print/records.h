/* records: rows for a program to read, as CSV, TSV, JSON or JSON lines, written as they come.
 *
 * The one writer of these formats, for the rows of every command. NULL and empty text differ: csv has nothing
 * for NULL and "" for empty text, tsv \N, json null. On a terminal control characters and bytes that are not
 * UTF-8 are shown by their numbers; to a file csv and tsv write them unchanged. */
#pragma once

#include "base/json_write.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum pb_records_form { PB_RECORDS_CSV, PB_RECORDS_TSV, PB_RECORDS_JSON, PB_RECORDS_JSONL };

/* VALUE: a number, or other text that is already JSON. */
enum pb_field_kind { PB_FIELD_NULL, PB_FIELD_TEXT, PB_FIELD_VALUE };

struct pb_records {
    FILE *out;
    enum pb_records_form form;
    bool terminal; /* a terminal reads it */
    const char *const *names;
    size_t ncolumns;

    uint64_t nfields; /* so far */
    struct pb_json_writer json;
};

/* The head, where the form has one. names: of the columns, at least one; they outlive the records. */
void pb_records_begin(struct pb_records *ret, FILE *out, enum pb_records_form form, bool terminal,
                      const char *const *names, size_t ncolumns);

/* The next field, left to right, row after row. text may hold NUL. */
void pb_records_field(struct pb_records *r, enum pb_field_kind kind, const char *text, size_t length);

/* Writes what follows the last row. */
void pb_records_end(struct pb_records *r);
