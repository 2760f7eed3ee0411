/* records: see records.h. */
#include "print/records.h"

#include "print/glyph.h"
#include "table/reader.h"

#include <string.h>

/* --- texts --- */

/* One character of JSON text. Bytes that are not UTF-8 become U+FFFD: JSON cannot hold them. */
static void put_json_glyph(FILE *out, const char *text, const struct pb_glyph *g)
{
    unsigned char c = (unsigned char)*text;

    if (c == '\n')
        fputs("\\n", out);
    else if (c < 0x20 || c == 0x7f)
        fprintf(out, "\\u%04x", c);
    else if (c == 0xc2 && g->bytes == 2 && (unsigned char)text[1] < 0xa0)
        fprintf(out, "\\u%04x", (unsigned char)text[1]);
    else if (strncmp(g->shown, "\\u", 2) == 0)
        fputs(g->shown, out);
    else if (!pb_utf8_valid(text, g->bytes))
        fputs("\xef\xbf\xbd", out);
    else
        fwrite(text, 1, g->bytes, out);
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f;
}

void pb_put_json(FILE *out, const char *text, size_t length)
{
    struct pb_glyph g;

    putc('"', out);
    for (size_t i = 0; i < length; i += g.bytes) {
        g.bytes = 1;
        if (text[i] == '"' || text[i] == '\\')
            fprintf(out, "\\%c", text[i]);
        else if (is_plain((unsigned char)text[i]))
            putc(text[i], out);
        else {
            pb_glyph_read(text + i, length - i, &g);
            put_json_glyph(out, text + i, &g);
        }
    }
    putc('"', out);
}

void pb_put_json_value(FILE *out, const char *text, size_t length)
{
    struct pb_glyph g;

    for (size_t i = 0; i < length; i += g.bytes) {
        g.bytes = 1;
        if (is_plain((unsigned char)text[i])) {
            putc(text[i], out);
        } else {
            pb_glyph_read(text + i, length - i, &g);
            put_json_glyph(out, text + i, &g);
        }
    }
}

/* A text NULL is quoted, since NULL itself is written so where an empty line would be lost. */
static bool needs_quotes(const char *text, size_t length)
{
    if (length == 4 && memcmp(text, "NULL", 4) == 0)
        return true;
    for (size_t i = 0; i < length; i++)
        if (strchr(",\"\r\n", text[i]) || text[i] == '\0')
            return true;
    return length == 0;
}

/* Unchanged, but escaped for a terminal. */
static size_t put_exact(FILE *out, const char *text, size_t left, bool terminal)
{
    if (terminal && *text != '\n') {
        struct pb_glyph g;
        pb_glyph_read(text, left, &g);
        fputs(g.shown, out);
        return g.bytes;
    }
    putc(*text, out);
    return 1;
}

static void put_csv(FILE *out, const char *text, size_t length, bool terminal)
{
    bool quotes = needs_quotes(text, length);

    if (!quotes && !terminal) {
        fwrite(text, 1, length, out);
        return;
    }
    fputs(quotes ? "\"" : "", out);
    for (size_t i = 0; i < length;) {
        if (text[i] == '"')
            putc('"', out);
        i += put_exact(out, text + i, length - i, terminal);
    }
    fputs(quotes ? "\"" : "", out);
}

/* As PostgreSQL's COPY writes it. */
static void put_tsv(FILE *out, const char *text, size_t length, bool terminal)
{
    for (size_t i = 0; i < length;) {
        const char *escape = text[i] == '\t'   ? "\\t"
                             : text[i] == '\n' ? "\\n"
                             : text[i] == '\r' ? "\\r"
                             : text[i] == '\\' ? "\\\\"
                                               : NULL;
        if (escape)
            fputs(escape, out);
        i += escape ? 1 : put_exact(out, text + i, length - i, terminal);
    }
}

/* --- rows --- */

static void put_separated(struct pb_records *r, enum pb_field_kind kind, const char *text, size_t length)
{
    bool csv = r->form == PB_RECORDS_CSV;

    if (kind == PB_FIELD_NULL) /* a row of one NULL would be an empty line, which readers skip */
        fputs(!csv ? "\\N" : r->ncolumns == 1 ? "NULL" : "", r->out);
    else
        (csv ? put_csv : put_tsv)(r->out, text, length, r->terminal);
}

static void put_value(struct pb_records *r, enum pb_field_kind kind, const char *text, size_t length)
{
    if (kind == PB_FIELD_NULL)
        fputs("null", r->out);
    else
        (kind == PB_FIELD_TEXT ? pb_put_json : pb_put_json_value)(r->out, text, length);
}

void pb_records_begin(struct pb_records *ret, FILE *out, enum pb_records_form form, bool terminal,
                      const char *const *names, size_t ncolumns)
{
    *ret = (struct pb_records){
        .out = out, .form = form, .terminal = terminal, .names = names, .ncolumns = ncolumns};
    if (form != PB_RECORDS_CSV && form != PB_RECORDS_TSV)
        return;
    for (size_t i = 0; i < ncolumns; i++)
        pb_records_field(ret, PB_FIELD_TEXT, names[i], strlen(names[i]));
    ret->nfields = 0;
}

void pb_records_field(struct pb_records *r, enum pb_field_kind kind, const char *text, size_t length)
{
    size_t column = r->nfields % r->ncolumns;
    bool last = column + 1 == r->ncolumns;

    if (r->form == PB_RECORDS_CSV || r->form == PB_RECORDS_TSV) {
        put_separated(r, kind, text, length);
        putc(last ? '\n' : r->form == PB_RECORDS_CSV ? ',' : '\t', r->out);
    } else {
        if (r->form == PB_RECORDS_JSON && column == 0)
            fputs(r->nfields ? ",\n  " : "[\n  ", r->out);
        fputs(column ? ", " : "{", r->out);
        pb_put_json(r->out, r->names[column], strlen(r->names[column]));
        fputs(": ", r->out);
        put_value(r, kind, text, length);
        fputs(!last ? "" : r->form == PB_RECORDS_JSON ? "}" : "}\n", r->out);
    }
    r->nfields++;
}

void pb_records_end(struct pb_records *r)
{
    if (r->form == PB_RECORDS_JSON)
        fputs(r->nfields ? "\n]\n" : "[]\n", r->out);
}
