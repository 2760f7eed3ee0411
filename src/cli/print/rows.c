/* rows: see rows.h. */
#include "cli/print/rows.h"

#include "base/cleanup.h"
#include "base/vector.h"
#include "cli/print/terminal.h"
#include "print/glyph.h"
#include "print/outlet.h"
#include "print/records.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pb_cell {
    enum pb_field_kind kind;
    char *text;
};

static size_t terminal_width(void);

void pb_rows_init(struct pb_rows *rows, const char *const *columns, size_t ncolumns)
{
    *rows = (struct pb_rows){.columns = columns,
                             .ncolumns = ncolumns,
                             .out = stdout,
                             .notes = stderr,
                             .room = terminal_width(),
                             .color = pb_color(),
                             .remedy = "--format json shows all"};
}

void pb_rows_done(struct pb_rows *rows)
{
    for (size_t i = 0; i < rows->n; i++)
        free(rows->cells[i].text);
    free(rows->cells);
    free(rows->widths);
    *rows = (struct pb_rows){0};
}

static void add_cell(struct pb_rows *rows, enum pb_field_kind kind, const char *text)
{
    if (pb_grow((void **)&rows->cells, &rows->cap, rows->n, sizeof(*rows->cells), NULL) < 0) {
        rows->failed = true;
        return;
    }
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) {
        rows->failed = true;
        return;
    }
    rows->cells[rows->n++] = (struct pb_cell){kind, copy};
    rows->bytes += sizeof(struct pb_cell) + (text ? strlen(text) + 16 : 0);
}

void pb_rows_text(struct pb_rows *rows, const char *text)
{
    add_cell(rows, text ? PB_FIELD_TEXT : PB_FIELD_NULL, text);
}

void pb_rows_number(struct pb_rows *rows, const char *format, ...)
{
    char text[64];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    add_cell(rows, PB_FIELD_VALUE, text);
}

bool pb_color(void)
{
    const char *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no && *no);
}

void pb_put_plain(FILE *to, const char *text)
{
    struct pb_glyph g;

    for (size_t left = strlen(text); left > 0; left -= g.bytes, text += g.bytes) {
        pb_glyph_read(text, left, &g);
        if (*text == '\n' || *text == '\t')
            putc(*text, to);
        else
            fputs(g.shown, to);
    }
}

/* --- a table --- */

/* Writes up to max columns of one line. */
static void put_clipped(FILE *to, const char *text, size_t max)
{
    size_t left = strlen(text), room = max;
    bool clip = pb_glyph_columns(text, left) > max;
    struct pb_glyph g;

    room -= clip && room;
    for (; left > 0; left -= g.bytes, text += g.bytes) {
        pb_glyph_read(text, left, &g);
        if (g.columns > room)
            break;
        fputs(g.shown, to);
        room -= g.columns;
    }
    for (; clip && room > 0; room--)
        putc(' ', to);
    if (clip)
        fputs("…", to);
}

static void put_blanks(FILE *to, size_t n)
{
    while (n-- > 0)
        putc(' ', to);
}

static size_t terminal_width(void)
{
    const char *columns = getenv("COLUMNS");
    int rows, width;

    if (!isatty(STDOUT_FILENO))
        return SIZE_MAX;
    if (columns && atoi(columns) > 0)
        return (size_t)atoi(columns);
    pb_terminal_size(STDOUT_FILENO, &rows, &width);
    return (size_t)width;
}

enum { GAP = 2, LEAST = 8 }; /* LEAST: a column that would be narrower is left out */

static size_t least_width(size_t width, bool whole)
{
    return whole || width < LEAST ? width : LEAST;
}

/* How many columns fit, from the left; at least one. Narrows the widest column of text until the line fits,
 * since a long text loses least by it. Numbers and times (whole) are shown whole or not at all. */
static size_t fit_columns(size_t widths[], const bool whole[], size_t n, size_t room)
{
    size_t shown = 0, total = 0;

    while (shown < n && (shown == 0 || total + GAP + least_width(widths[shown], whole[shown]) <= room)) {
        total += least_width(widths[shown], whole[shown]) + (shown ? GAP : 0);
        shown++;
    }
    total = GAP * (shown - 1);
    for (size_t i = 0; i < shown; i++) {
        widths[i] = widths[i] > room ? room : widths[i];
        total += widths[i];
    }
    for (; total > room; total--) {
        size_t widest = shown;
        for (size_t i = 0; i < shown; i++)
            if (!whole[i] && (widest == shown || widths[i] > widths[widest]))
                widest = i;
        if (widest == shown || widths[widest] == 1)
            break;
        widths[widest]--;
    }
    return shown;
}

static const char *shown_text(const struct pb_rows *rows, size_t i)
{
    const struct pb_cell *cell = &rows->cells[i];
    return cell->kind != PB_FIELD_NULL ? cell->text : rows->null ? rows->null : "-";
}

static size_t columns_of(const char *text)
{
    return pb_glyph_columns(text, strlen(text));
}

/* A number, or a time such as 2026-11-18 22:43:52: cut, it would be read as another. */
static bool is_whole(const struct pb_cell *cell)
{
    const char *t = cell->text;

    return cell->kind == PB_FIELD_VALUE || cell->kind == PB_FIELD_NULL ||
           (strlen(t) >= 19 && strspn(t, "0123456789") == 4 && t[4] == '-' && t[7] == '-' && t[13] == ':');
}

/* Computes the widths for the rows held now. */
static int lay_out(struct pb_rows *rows)
{
    size_t n = rows->ncolumns;
    _cleanup_free_ bool *whole = calloc(n, sizeof(*whole));

    rows->widths = calloc(n, sizeof(*rows->widths));
    if (!rows->widths || !whole)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        rows->widths[i] = columns_of(rows->columns[i]);
        whole[i] = rows->n > i;
    }
    for (size_t i = 0; i < rows->n; i++) {
        size_t width = columns_of(shown_text(rows, i));
        rows->widths[i % n] = width > rows->widths[i % n] ? width : rows->widths[i % n];
        whole[i % n] = whole[i % n] && is_whole(&rows->cells[i]);
    }
    rows->nshown = rows->room == SIZE_MAX ? n : fit_columns(rows->widths, whole, n, rows->room);
    return 0;
}

static void put_cell(const struct pb_rows *rows, size_t column, const char *text, bool right)
{
    size_t width = rows->widths[column], w = columns_of(text), space = w < width ? width - w : 0;
    bool last = column + 1 == rows->nshown;

    put_blanks(rows->out, right ? space : 0);
    put_clipped(rows->out, text, rows->room == SIZE_MAX ? SIZE_MAX : width);
    if (last)
        putc('\n', rows->out);
    else
        put_blanks(rows->out, (right ? 0 : space) + GAP);
}

static void put_header(const struct pb_rows *rows)
{
    fputs(rows->color ? pb_style(PB_BOLD) : "", rows->out);
    for (size_t i = 0; i < rows->nshown; i++)
        put_cell(rows, i, rows->columns[i], rows->n && rows->cells[i].kind == PB_FIELD_VALUE);
    fputs(rows->color ? pb_style(PB_PLAIN) : "", rows->out);
}

static int put_block(struct pb_rows *rows)
{
    if (!rows->widths) {
        int r = lay_out(rows);
        if (r < 0)
            return r;
        put_header(rows);
    }
    for (size_t i = 0; i < rows->n; i++) {
        if (i % rows->ncolumns < rows->nshown)
            put_cell(rows, i % rows->ncolumns, shown_text(rows, i), rows->cells[i].kind == PB_FIELD_VALUE);
        free(rows->cells[i].text);
    }
    rows->n = rows->bytes = 0;
    return 0;
}

/* Names the columns that did not fit, as far as a line goes. */
static void tell_left_out(const struct pb_rows *rows)
{
    enum { NAMES = 12 };
    size_t left = rows->ncolumns - rows->nshown;

    fflush(rows->out);
    fprintf(rows->notes, "note: %zu of %zu columns fit; not shown: ", rows->nshown, rows->ncolumns);
    for (size_t i = 0; i < left && i < NAMES; i++) {
        fputs(i ? ", " : "", rows->notes);
        pb_put_plain(rows->notes, rows->columns[rows->nshown + i]);
    }
    if (left > NAMES)
        fprintf(rows->notes, " and %zu more", left - NAMES);
    fprintf(rows->notes, " (%s)\n", rows->remedy);
}

static int print_table(struct pb_rows *rows)
{
    int r = put_block(rows);

    if (r == 0 && rows->nshown < rows->ncolumns)
        tell_left_out(rows);
    return r;
}

int pb_rows_flush(struct pb_rows *rows)
{
    return rows->failed ? -ENOMEM : put_block(rows);
}

/* --- for programs --- */

static void print_records(const struct pb_rows *rows, enum pb_records_form form)
{
    struct pb_records to;

    pb_records_begin(&to, rows->out, form, isatty(fileno(rows->out)), rows->columns, rows->ncolumns);
    for (size_t i = 0; i < rows->n; i++) {
        const struct pb_cell *cell = &rows->cells[i];
        pb_records_field(&to, cell->kind, cell->text, cell->text ? strlen(cell->text) : 0);
    }
    pb_records_end(&to);
}

int pb_rows_print(struct pb_rows *rows, enum pb_format format, const char *empty, struct pb_err *err)
{
    int r = rows->failed ? -ENOMEM : 0;
    bool none = rows->n == 0;

    if (r == 0 && format == PB_FORMAT_TABLE && (!none || !empty))
        r = print_table(rows);
    if (r < 0)
        return pb_fail(err, r, "out of memory");
    if (format == PB_FORMAT_TABLE && none && empty)
        puts(empty);
    else if (format == PB_FORMAT_JSON)
        print_records(rows, PB_RECORDS_JSON);
    else if (format == PB_FORMAT_CSV)
        print_records(rows, PB_RECORDS_CSV);
    else if (format == PB_FORMAT_TSV)
        print_records(rows, PB_RECORDS_TSV);
    return fflush(rows->out) != 0 ? pb_fail(err, -errno, "the output cannot be written: %s", strerror(errno))
                                  : 0;
}
