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
    size_t bytes;     /* their size in memory, about */
    bool failed;      /* out of memory: pb_rows_print reports it */
    const char *null; /* how a table shows NULL; "-" unless set */

    /* Where and how a table is written: to stdout without a width limit, unless set before the first row. */
    FILE *out, *notes;
    size_t room; /* width of the screen in columns; SIZE_MAX: no limit */
    bool color;
    const char *remedy; /* the option that shows the columns left out */

    size_t *widths, nshown; /* set once the header is written */
};

/* columns: the names, an array that outlives the rows. */
void pb_rows_init(struct pb_rows *rows, const char *const *columns, size_t ncolumns);
void pb_rows_done(struct pb_rows *rows);

/* Adds the next cell, left to right, row after row. text NULL: SQL's NULL. */
void pb_rows_text(struct pb_rows *rows, const char *text);
__attribute__((format(printf, 2, 3))) void pb_rows_number(struct pb_rows *rows, const char *format, ...);

/* Prints the rows held so far and drops them; later rows use the same column widths. -ENOMEM. */
int pb_rows_flush(struct pb_rows *rows);

/* Prints the rows; all formats but the table go to stdout. Columns that do not fit the screen are left out,
 * and a note says so. An empty table prints its header, or `empty` where that is given and the format is a
 * table. */
int pb_rows_print(struct pb_rows *rows, enum pb_format format, const char *empty, struct pb_err *err);

/* Prints text of other programs for a person: control characters (but newline and tab) and bytes that are not
 * UTF-8 are shown by number. */
void pb_put_plain(FILE *to, const char *text);

/* True on a terminal, unless NO_COLOR is set. */
bool pb_color(void);
