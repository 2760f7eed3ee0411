/* query_print: see query_print.h. */
#include "cli/print/query_print.h"

#include "base/time.h"
#include "cli/print/arrow.h"
#include "cli/print/rows.h"
#include "engine/caller/broker_parquet.h"
#include "print/glyph.h"
#include "print/outlet.h"
#include "print/records.h"
#include "table/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNIQUE_MAX = 2000 };
enum { TABLE_BYTES = 8 << 20 };                      /* rows buffered to find the column widths */
static const uint64_t PATIENCE_NS = PB_NS_PER_S / 2; /* on a terminal, rows are shown after this long */

struct pb_printer {
    struct pb_print_options o;
    enum pb_query_format format;
    FILE *out;
    bool careful; /* output goes to a terminal: escape sequences in values must not reach it */
    char **names, **types;
    unsigned ncolumns;
    uint64_t nrows, results;
    bool shown; /* a row, where results without rows are left out */
    struct pb_rows rows;
    struct pb_records records;
    struct pb_parquet *parquet;
    struct pb_arrow *arrow;
    struct pb_row_text row;
    uint64_t began; /* start of the result, on the monotonic clock */
};

static const char *const names[PB_QUERY_FORMATS] = {"table", "json",     "jsonl",   "csv",
                                                    "tsv",   "markdown", "parquet", "arrow"};

int pb_query_format(const char *name, enum pb_query_format *ret)
{
    for (int i = 0; i < PB_QUERY_FORMATS; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum pb_query_format)i;
            return 0;
        }
    return -EINVAL;
}

/* --- texts --- */

static enum pb_field_kind kind_of(const struct pb_sql_cell *cell)
{
    return cell->kind == PB_SQL_NULL   ? PB_FIELD_NULL
           : cell->kind == PB_SQL_TEXT ? PB_FIELD_TEXT
                                       : PB_FIELD_VALUE;
}

/* Prints one character for a person; an unprintable one by its number. */
static size_t put_shown(FILE *out, const char *text, size_t left)
{
    struct pb_glyph g;

    pb_glyph_read(text, left, &g);
    fputs(g.shown, out);
    return g.bytes;
}

/* Escapes what would end the cell or be read as markup or HTML. */
static void put_markdown(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        if (text[i] == '\n') {
            fputs("<br>", out);
            i++;
        } else if (strchr("|\\`*_[]~", text[i]) && text[i]) {
            fprintf(out, "\\%c", text[i++]);
        } else if (text[i] == '<' || text[i] == '&') {
            fputs(text[i] == '<' ? "&lt;" : "&amp;", out);
            i++;
        } else {
            i += put_shown(out, text + i, length - i);
        }
    }
}

/* --- a result --- */

/* --columns: rows are arrays, since the names were printed first. */
static void put_json_array(const struct pb_printer *p, const struct pb_sql_cell *cells)
{
    struct pb_json_writer w = {.out = p->out, .tight = true};

    pb_json_open(&w, NULL, '[');
    for (unsigned i = 0; i < p->ncolumns; i++)
        if (cells[i].kind == PB_SQL_NULL)
            pb_json_put_null(&w, NULL);
        else if (cells[i].kind == PB_SQL_TEXT)
            pb_json_put_bytes(&w, NULL, cells[i].text, cells[i].length);
        else
            pb_json_put_value(&w, NULL, cells[i].text, cells[i].length);
    pb_json_close(&w);
    putc('\n', p->out);
}

/* Whether records.h prints this format, and as which form. */
static bool in_records(const struct pb_printer *p, enum pb_records_form *ret)
{
    switch (p->format) {
    case PB_QUERY_CSV:
        *ret = PB_RECORDS_CSV;
        return true;
    case PB_QUERY_TSV:
        *ret = PB_RECORDS_TSV;
        return true;
    case PB_QUERY_JSON:
        *ret = PB_RECORDS_JSON;
        return true;
    case PB_QUERY_JSONL:
        *ret = PB_RECORDS_JSONL;
        return !p->o.columns;
    default:
        return false;
    }
}

static void put_markdown_row(const struct pb_printer *p, const struct pb_sql_cell *cells)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        fputs("| ", p->out);
        if (cells[i].kind == PB_SQL_NULL)
            fputs("NULL", p->out);
        else
            put_markdown(p->out, cells[i].text, cells[i].length);
        putc(' ', p->out);
    }
    fputs("|\n", p->out);
}

/* Further lines of a value are indented below its first. */
static void put_indented(FILE *out, const char *text, size_t length, size_t indent)
{
    for (size_t i = 0; i < length;) {
        if (text[i] == '\n') {
            fprintf(out, "\n%*s", (int)indent, "");
            i++;
        } else {
            i += put_shown(out, text + i, length - i);
        }
    }
}

/* One column per line, for rows wider than any terminal. */
static void put_expanded(const struct pb_printer *p, const struct pb_sql_cell *cells)
{
    size_t width = 0;

    for (unsigned i = 0; i < p->ncolumns; i++) {
        size_t n = pb_glyph_columns(p->names[i], strlen(p->names[i]));
        width = n > width ? n : width;
    }
    fprintf(p->out, "-- row %llu\n", (unsigned long long)p->nrows + 1);
    for (unsigned i = 0; i < p->ncolumns; i++) {
        size_t n = strlen(p->names[i]);
        fprintf(p->out, "%*s", (int)(width - pb_glyph_columns(p->names[i], n)), "");
        for (size_t k = 0; k < n;)
            k += put_shown(p->out, p->names[i] + k, n - k);
        fputs(": ", p->out);
        if (cells[i].kind == PB_SQL_NULL)
            fputs("NULL", p->out);
        else
            put_indented(p->out, cells[i].text, cells[i].length, width + 2);
        putc('\n', p->out);
    }
}

/* A query plan is a drawing of many lines: it is printed unchanged. */
static bool is_plan(const struct pb_printer *p)
{
    return p->ncolumns == 2 && strcmp(p->names[1], "explain_value") == 0 && p->format == PB_QUERY_TABLE;
}

/* A NUL-terminated copy; a NUL inside is shown as other control characters are. */
static char *terminated(const char *text, size_t length)
{
    size_t nuls = 0, n = 0;

    for (size_t i = 0; i < length; i++)
        nuls += text[i] == '\0';
    char *copy = malloc(length + 3 * nuls + 1);
    for (size_t i = 0; copy && i < length; i++)
        if (text[i])
            copy[n++] = text[i];
        else
            n = (size_t)(stpcpy(copy + n, "\\x00") - copy);
    if (copy)
        copy[n] = '\0';
    return copy;
}

static int add_to_table(struct pb_printer *p, const struct pb_sql_cell *cells)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        char *text = cells[i].kind == PB_SQL_NULL ? NULL : terminated(cells[i].text, cells[i].length);
        if (!text && cells[i].kind != PB_SQL_NULL)
            return -ENOMEM;
        if (cells[i].kind == PB_SQL_NUMBER && cells[i].length < 60)
            pb_rows_number(&p->rows, "%s", text ? text : "");
        else
            pb_rows_text(&p->rows, text);
        free(text);
    }
    /* A result of any size is printed in bounded memory. */
    return p->rows.bytes > TABLE_BYTES ? pb_rows_flush(&p->rows) : 0;
}

/* Whether results without rows are left out. */
static bool leaves_out(const struct pb_printer *p)
{
    return p->o.if_empty && p->format == PB_QUERY_TABLE;
}

static int finish_result(struct pb_printer *p, struct pb_err *err)
{
    int r = 0;

    if (p->results == 0)
        return 0;
    enum pb_records_form form;
    if (in_records(p, &form))
        pb_records_end(&p->records);
    if (p->format == PB_QUERY_TABLE && !p->o.expanded && !is_plan(p) && leaves_out(p) && p->nrows == 0) {
        pb_rows_done(&p->rows);
    } else if (p->format == PB_QUERY_TABLE && !p->o.expanded && !is_plan(p)) {
        r = pb_rows_print(&p->rows, PB_FORMAT_TABLE, NULL, err);
        pb_rows_done(&p->rows);
    }
    if (r < 0)
        p->results = 0; /* it is not finished a second time */
    return r;
}

static void release_names(struct pb_printer *p)
{
    for (unsigned i = 0; p->names && i < p->ncolumns; i++) {
        free(p->names[i]);
        free(p->types ? p->types[i] : NULL);
    }
    free(p->names);
    free(p->types);
    p->names = p->types = NULL;
}

/* In a JSON object the second of two equal names would hide the first: it becomes name_1. */
static int make_unique(struct pb_printer *p)
{
    for (unsigned i = 1; i < p->ncolumns && p->ncolumns <= UNIQUE_MAX; i++) {
        char *given = p->names[i];
        unsigned k = 0, n = 0;
        while (k < i) {
            if (strcmp(p->names[k], p->names[i]) != 0) {
                k++;
                continue;
            }
            char *name;
            if (asprintf(&name, "%s_%u", given, ++n) < 0)
                return -ENOMEM;
            if (p->names[i] != given)
                free(p->names[i]);
            p->names[i] = name;
            k = 0;
        }
        if (p->names[i] != given)
            free(given);
    }
    return 0;
}

static int keep_names(struct pb_printer *p, const struct pb_sql_column *columns, unsigned n)
{
    release_names(p);
    p->ncolumns = n;
    p->names = calloc(n, sizeof(*p->names));
    p->types = calloc(n, sizeof(*p->types));
    if (!p->names || !p->types)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        if (!(p->names[i] = strdup(columns[i].name)) || !(p->types[i] = strdup(columns[i].type)))
            return -ENOMEM;
    return p->format == PB_QUERY_JSON || (p->format == PB_QUERY_JSONL && !p->o.columns) ? make_unique(p) : 0;
}

static void put_markdown_header(const struct pb_printer *p)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        fputs("| ", p->out);
        put_markdown(p->out, p->names[i], strlen(p->names[i]));
        putc(' ', p->out);
    }
    fputs("|\n", p->out);
    for (unsigned i = 0; i < p->ncolumns; i++)
        fputs(i + 1 < p->ncolumns ? "| --- " : "| --- |\n", p->out);
}

/* For programs that need the columns of a result without rows, and the types. */
static void put_json_columns(const struct pb_printer *p)
{
    struct pb_json_writer w = {.out = p->out, .tight = true};

    pb_json_open(&w, NULL, '{');
    pb_json_open(&w, "columns", '[');
    for (unsigned i = 0; i < p->ncolumns; i++) {
        pb_json_open(&w, NULL, '{');
        pb_json_put_text(&w, "name", p->names[i]);
        pb_json_put_text(&w, "type", p->types[i]);
        pb_json_close(&w);
    }
    pb_json_close(&w);
    pb_json_close(&w);
    putc('\n', p->out);
}

static void begin_table(struct pb_printer *p)
{
    pb_rows_init(&p->rows, (const char *const *)p->names, p->ncolumns);
    p->rows.null = "NULL";
    p->rows.remedy = "--expanded shows all";
    p->rows.out = p->out;
    if (p->o.screen) {
        p->rows.notes = p->out;
    } else if (p->out != stdout) {
        p->rows.room = SIZE_MAX;
        p->rows.color = false;
    }
}

int pb_printer_columns(struct pb_printer *p, const struct pb_sql_column *columns, unsigned n)
{
    enum pb_records_form form;

    if (p->parquet)
        return pb_parquet_columns(p->parquet, columns, n);
    if (p->arrow)
        return pb_arrow_columns(p->arrow, columns, n);
    int r = finish_result(p, NULL);
    if (r == 0)
        r = keep_names(p, columns, n);
    if (r < 0)
        return r;
    if (p->results++ && p->format != PB_QUERY_JSONL && !leaves_out(p))
        putc('\n', p->out);
    p->nrows = 0;
    p->began = pb_now_ns();
    if (p->format == PB_QUERY_TABLE)
        begin_table(p);
    if (in_records(p, &form))
        pb_records_begin(&p->records, p->out, form, p->careful, (const char *const *)p->names, n);
    if (p->format == PB_QUERY_MARKDOWN)
        put_markdown_header(p);
    if (p->format == PB_QUERY_JSONL && p->o.columns)
        put_json_columns(p);
    return 0;
}

static int add_row(struct pb_printer *p, const struct pb_sql_cell *cells, unsigned n)
{
    enum pb_records_form form;
    int r = 0;

    if (p->parquet)
        return pb_parquet_row(p->parquet, cells, n);
    if (leaves_out(p) && p->nrows == 0 && p->shown)
        putc('\n', p->out);
    p->shown = true;
    if (in_records(p, &form)) {
        for (unsigned i = 0; i < p->ncolumns; i++)
            pb_records_field(&p->records, kind_of(&cells[i]), cells[i].text, cells[i].length);
    } else if (p->format == PB_QUERY_JSONL) {
        put_json_array(p, cells);
    }
    if (p->format == PB_QUERY_MARKDOWN)
        put_markdown_row(p, cells);
    if (is_plan(p))
        put_indented(p->out, cells[1].text, cells[1].length, 0);
    else if (p->format == PB_QUERY_TABLE && p->o.expanded)
        put_expanded(p, cells);
    else if (p->format == PB_QUERY_TABLE)
        r = add_to_table(p, cells);
    p->nrows++;
    return ferror(p->out) ? -(errno ? errno : EIO) : r;
}

/* The user may be waiting: prints the rows that the format need not hold back. */
static int show_so_far(struct pb_printer *p)
{
    int r = 0;

    if (p->parquet)
        return 0;
    if (p->format == PB_QUERY_TABLE && p->careful && !p->o.screen && p->rows.bytes &&
        pb_now_ns() - p->began > PATIENCE_NS)
        r = pb_rows_flush(&p->rows);
    return fflush(p->out) != 0 && r == 0 ? -errno : r;
}

int pb_printer_rows(struct pb_printer *p, const struct pb_batch *batch)
{
    int r = p->arrow ? pb_arrow_rows(p->arrow, batch) : 0;

    for (uint32_t i = 0; r == 0 && !p->arrow && i < batch->nrows; i++) {
        r = pb_row_text_take(&p->row, batch, i);
        if (r == 0)
            r = add_row(p, p->row.cells, batch->ncolumns);
    }
    return r < 0 ? r : show_so_far(p);
}

void pb_printer_note(struct pb_printer *p, const char *text)
{
    FILE *to = p->o.screen ? p->out : stderr;

    fflush(p->out);
    fputs("note: ", to);
    pb_put_sentence(to, text);
}

struct pb_printer *pb_printer_new(enum pb_query_format format, const struct pb_print_options *o, FILE *out)
{
    struct pb_printer *p = calloc(1, sizeof(*p));

    if (p)
        *p = (struct pb_printer){
            .format = format, .o = *o, .out = out, .careful = o->screen || isatty(fileno(out))};
    if (p && format == PB_QUERY_ARROW && !(p->arrow = pb_arrow_new(out))) {
        free(p);
        return NULL;
    }
    return p;
}

int pb_printer_to_parquet(struct pb_printer *p, const char *file, struct pb_err *err)
{
    return pb_parquet_open(file, &p->parquet, err);
}

int pb_printer_end(struct pb_printer *p, struct pb_err *err)
{
    if (p->parquet)
        return err ? pb_parquet_end(p->parquet, err) : 0;
    int r = !p->arrow ? finish_result(p, err) : err ? pb_arrow_end(p->arrow) : 0;
    if (r == 0 && leaves_out(p) && p->results && !p->shown)
        fprintf(p->out, "%s\n", p->o.if_empty);
    if (r == 0 && (fflush(p->out) != 0 || ferror(p->out)))
        r = pb_fail(err, -errno, "the output cannot be written: %s", strerror(errno));
    return r;
}

void pb_printer_free(struct pb_printer *p)
{
    pb_rows_done(&p->rows);
    pb_row_text_done(&p->row);
    pb_parquet_free(p->parquet);
    pb_arrow_free(p->arrow);
    release_names(p);
    free(p);
}
