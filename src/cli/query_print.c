/* query_print: see query_print.h. */
#include "cli/query_print.h"

#include "cli/rows.h"
#include "engine/broker_parquet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pb_printer {
    enum pb_query_format format;
    bool expanded, names_first;
    FILE *out;
    char **names;
    unsigned ncolumns;
    uint64_t nrows, results;
    struct pb_rows rows;
    struct pb_parquet *parquet;
};

static const char *const names[PB_QUERY_FORMATS] = {"table", "json",     "jsonl",  "csv",
                                                    "tsv",   "markdown", "parquet"};

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

static void put_json_text(FILE *out, const char *text, size_t length)
{
    putc('"', out);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\u%04x", c);
        else
            putc(c, out);
    }
    putc('"', out);
}

static void put_json(FILE *out, const struct pb_sql_cell *cell)
{
    if (cell->kind == PB_SQL_NULL)
        fputs("null", out);
    else if (cell->kind == PB_SQL_TEXT)
        put_json_text(out, cell->text, cell->length);
    else
        fwrite(cell->text, 1, cell->length, out);
}

static bool needs_quotes(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (strchr(",\"\r\n", text[i]) || text[i] == '\0')
            return true;
    return length == 0;
}

static void put_csv(FILE *out, const char *text, size_t length)
{
    if (!needs_quotes(text, length)) {
        fwrite(text, 1, length, out);
        return;
    }
    putc('"', out);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"')
            putc('"', out);
        putc(text[i], out);
    }
    putc('"', out);
}

/* As PostgreSQL's COPY writes it. */
static void put_tsv(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const char *escape = text[i] == '\t'   ? "\\t"
                             : text[i] == '\n' ? "\\n"
                             : text[i] == '\r' ? "\\r"
                             : text[i] == '\\' ? "\\\\"
                                               : NULL;
        if (escape)
            fputs(escape, out);
        else
            putc(text[i], out);
    }
}

static void put_markdown(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '|' || text[i] == '\\')
            fprintf(out, "\\%c", text[i]);
        else if (text[i] == '\n')
            fputs("<br>", out);
        else if ((unsigned char)text[i] < 0x20)
            putc('?', out);
        else
            putc(text[i], out);
    }
}

/* --- a result --- */

static void put_json_row(const struct pb_printer *p, const struct pb_sql_cell *cells)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        fputs(i ? ", " : "{", p->out);
        put_json_text(p->out, p->names[i], strlen(p->names[i]));
        fputs(": ", p->out);
        put_json(p->out, &cells[i]);
    }
    putc('}', p->out);
}

static void put_separated(const struct pb_printer *p, const struct pb_sql_cell *cells)
{
    bool csv = p->format == PB_QUERY_CSV;

    for (unsigned i = 0; i < p->ncolumns; i++) {
        if (i)
            putc(csv ? ',' : '\t', p->out);
        if (cells[i].kind == PB_SQL_NULL)
            fputs(csv ? "" : "\\N", p->out);
        else if (csv)
            put_csv(p->out, cells[i].text, cells[i].length);
        else
            put_tsv(p->out, cells[i].text, cells[i].length);
    }
    /* A row of one NULL would be an empty line, which readers skip. */
    if (csv && p->ncolumns == 1 && cells[0].kind == PB_SQL_NULL)
        fputs("NULL", p->out);
    putc('\n', p->out);
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

/* One column a line, for rows wider than any terminal. */
static void put_expanded(const struct pb_printer *p, const struct pb_sql_cell *cells)
{
    int width = 0;

    for (unsigned i = 0; i < p->ncolumns; i++)
        width = (int)strlen(p->names[i]) > width ? (int)strlen(p->names[i]) : width;
    fprintf(p->out, "-- row %llu\n", (unsigned long long)p->nrows + 1);
    for (unsigned i = 0; i < p->ncolumns; i++) {
        fprintf(p->out, "%*s: ", width, p->names[i]);
        if (cells[i].kind == PB_SQL_NULL)
            fputs("NULL", p->out);
        for (uint32_t k = 0; cells[i].kind != PB_SQL_NULL && k < cells[i].length; k++) {
            unsigned char c = (unsigned char)cells[i].text[k];
            putc(c < 0x20 && c != '\n' ? '?' : c, p->out);
        }
        putc('\n', p->out);
    }
}

/* A plan is a drawing over many lines: it is shown as it is. */
static bool is_plan(const struct pb_printer *p)
{
    return p->ncolumns == 2 && strcmp(p->names[1], "explain_value") == 0 && p->format == PB_QUERY_TABLE;
}

static void add_to_table(struct pb_printer *p, const struct pb_sql_cell *cells)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        char *text = cells[i].kind == PB_SQL_NULL ? NULL : strndup(cells[i].text, cells[i].length);
        if (cells[i].kind == PB_SQL_NUMBER && cells[i].length < 60)
            pb_rows_number(&p->rows, "%s", text ? text : "");
        else
            pb_rows_text(&p->rows, text);
        free(text);
    }
}

static int finish(struct pb_printer *p, struct pb_err *err)
{
    int r = 0;

    if (p->results == 0)
        return 0;
    if (p->format == PB_QUERY_JSON)
        fputs(p->nrows ? "\n]\n" : "[]\n", p->out);
    if (p->format == PB_QUERY_TABLE && !p->expanded && !is_plan(p)) {
        r = pb_rows_print(&p->rows, PB_FORMAT_TABLE, NULL, err);
        pb_rows_done(&p->rows);
    }
    return r;
}

static void release_names(struct pb_printer *p)
{
    for (unsigned i = 0; p->names && i < p->ncolumns; i++)
        free(p->names[i]);
    free(p->names);
    p->names = NULL;
}

static int keep_names(struct pb_printer *p, const struct pb_sql_column *columns, unsigned n)
{
    release_names(p);
    p->ncolumns = n;
    p->names = calloc(n, sizeof(*p->names));
    if (!p->names)
        return -ENOMEM;
    for (unsigned i = 0; i < n; i++)
        if (!(p->names[i] = strdup(columns[i].name)))
            return -ENOMEM;
    return 0;
}

static void put_header(const struct pb_printer *p)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        const char *name = p->names[i];
        if (p->format == PB_QUERY_MARKDOWN) {
            fputs("| ", p->out);
            put_markdown(p->out, name, strlen(name));
            putc(' ', p->out);
        } else {
            if (i)
                putc(p->format == PB_QUERY_CSV ? ',' : '\t', p->out);
            (p->format == PB_QUERY_CSV ? put_csv : put_tsv)(p->out, name, strlen(name));
        }
    }
    fputs(p->format == PB_QUERY_MARKDOWN ? "|\n" : "\n", p->out);
    for (unsigned i = 0; p->format == PB_QUERY_MARKDOWN && i < p->ncolumns; i++)
        fputs(i + 1 < p->ncolumns ? "| --- " : "| --- |\n", p->out);
}

/* For who must know the columns of a result without rows. */
static void put_json_names(const struct pb_printer *p)
{
    for (unsigned i = 0; i < p->ncolumns; i++) {
        fputs(i ? ", " : "[", p->out);
        put_json_text(p->out, p->names[i], strlen(p->names[i]));
    }
    fputs("]\n", p->out);
}

static int begin(void *arg, const struct pb_sql_column *columns, unsigned n)
{
    struct pb_printer *p = arg;

    if (p->parquet)
        return pb_parquet_columns(p->parquet, columns, n);
    int r = finish(p, NULL);
    if (r == 0)
        r = keep_names(p, columns, n);
    if (r < 0)
        return r;
    if (p->results++ && p->format != PB_QUERY_JSONL)
        putc('\n', p->out);
    p->nrows = 0;
    if (p->format == PB_QUERY_TABLE) {
        pb_rows_init(&p->rows, (const char *const *)p->names, n);
        p->rows.null = "NULL";
    }
    if (p->format == PB_QUERY_CSV || p->format == PB_QUERY_TSV || p->format == PB_QUERY_MARKDOWN)
        put_header(p);
    if (p->format == PB_QUERY_JSONL && p->names_first)
        put_json_names(p);
    return 0;
}

static int add_row(void *arg, const struct pb_sql_cell *cells, unsigned n)
{
    struct pb_printer *p = arg;

    if (p->parquet)
        return pb_parquet_row(p->parquet, cells, n);
    if (p->format == PB_QUERY_JSON)
        fputs(p->nrows ? ",\n  " : "[\n  ", p->out);
    if (p->format == PB_QUERY_JSON || p->format == PB_QUERY_JSONL)
        put_json_row(p, cells);
    if (p->format == PB_QUERY_JSONL)
        putc('\n', p->out);
    if (p->format == PB_QUERY_CSV || p->format == PB_QUERY_TSV)
        put_separated(p, cells);
    if (p->format == PB_QUERY_MARKDOWN)
        put_markdown_row(p, cells);
    if (is_plan(p))
        fwrite(cells[1].text, 1, cells[1].length, p->out);
    else if (p->format == PB_QUERY_TABLE && p->expanded)
        put_expanded(p, cells);
    else if (p->format == PB_QUERY_TABLE)
        add_to_table(p, cells);
    p->nrows++;
    return ferror(p->out) ? -EIO : 0;
}

static void note(void *arg, const char *text)
{
    fflush(((struct pb_printer *)arg)->out);
    fprintf(stderr, "note: %s\n", text);
}

struct pb_printer *pb_printer_new(enum pb_query_format format, bool expanded, FILE *out)
{
    struct pb_printer *p = calloc(1, sizeof(*p));

    if (p)
        *p = (struct pb_printer){.format = format, .expanded = expanded, .out = out};
    return p;
}

void pb_printer_names_first(struct pb_printer *p)
{
    p->names_first = true;
}

int pb_printer_to_parquet(struct pb_printer *p, const char *file, struct pb_err *err)
{
    return pb_parquet_open(file, &p->parquet, err);
}

struct pb_sql_sink pb_printer_sink(struct pb_printer *p)
{
    return (struct pb_sql_sink){.columns = begin, .row = add_row, .note = note, .arg = p};
}

int pb_printer_end(struct pb_printer *p, struct pb_err *err)
{
    if (p->parquet)
        return err ? pb_parquet_end(p->parquet, err) : 0;
    int r = finish(p, err);
    if (r == 0 && (fflush(p->out) != 0 || ferror(p->out)))
        r = pb_fail(err, -errno, "the output cannot be written: %s", strerror(errno));
    return r;
}

void pb_printer_free(struct pb_printer *p)
{
    pb_rows_done(&p->rows);
    pb_parquet_free(p->parquet);
    release_names(p);
    free(p);
}
