/* rows: a small table of text, printed as a table that fits the terminal, as JSON, CSV or TSV.
 *
 * Cells are copied. A cell is text, a number (unquoted in JSON, to the right in a table) or NULL. */
#pragma once

#include "cli/cli.h"

#include <stdio.h>

struct pb_rows {
    const char *const *columns;
    size_t ncolumns;
    struct pb_cell *cells;
    size_t n, cap;    /* cells */
    size_t bytes;     /* that they take, about */
    bool failed;      /* out of memory: told by pb_rows_print */
    const char *null; /* how a table shows NULL; "-" unless set */

    /* Where and how a table is written: stdout, as it is, unless set before the first row. */
    FILE *out, *notes;
    size_t room; /* columns of the screen; SIZE_MAX: no bound */
    bool color;
    const char *remedy; /* what shows columns that have no room */

    size_t *widths, nshown; /* once its head is written */
};

/* columns: an array of names that outlives the rows. */
void pb_rows_init(struct pb_rows *rows, const char *const *columns, size_t ncolumns);
void pb_rows_done(struct pb_rows *rows);

/* The next cell, left to right, row after row. text NULL: NULL. */
void pb_rows_text(struct pb_rows *rows, const char *text);
__attribute__((format(printf, 2, 3))) void pb_rows_number(struct pb_rows *rows, const char *format, ...);

/* Writes what there is of a table that goes on, and forgets it: its widths are those of the rows so far.
 * -ENOMEM. */
int pb_rows_flush(struct pb_rows *rows);

/* Writes them, but for a table always to stdout. Columns that do not fit the screen are left out, and a note
 * says so. An empty table prints its header, or `empty` instead where that is given and a person reads. */
int pb_rows_print(struct pb_rows *rows, enum pb_format format, const char *empty, struct pb_err *err);

/* Text of other programs, for a person: control characters but newline and tab, and what is not UTF-8, are
 * shown by their numbers. */
void pb_put_plain(FILE *to, const char *text);

/* True on a terminal, unless NO_COLOR says otherwise. */
bool pb_color(void);
