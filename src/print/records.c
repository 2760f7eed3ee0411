/* records: see records.h. */
#include "print/records.h"

#include "print/glyph.h"

#include <string.h>

/* --- texts --- */

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

static void put_value(struct pb_records *r, enum pb_field_kind kind, const char *name, const char *text,
                      size_t length)
{
    if (kind == PB_FIELD_NULL)
        pb_json_put_null(&r->json, name);
    else if (kind == PB_FIELD_TEXT)
        pb_json_put_bytes(&r->json, name, text, length);
    else
        pb_json_put_value(&r->json, name, text, length);
}

void pb_records_begin(struct pb_records *ret, FILE *out, enum pb_records_form form, bool terminal,
                      const char *const *names, size_t ncolumns)
{
    *ret = (struct pb_records){.out = out,
                               .form = form,
                               .terminal = terminal,
                               .names = names,
                               .ncolumns = ncolumns,
                               .json = {.out = out}};
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
        if (column == 0) {
            if (r->form == PB_RECORDS_JSON && r->nfields == 0)
                pb_json_open(&r->json, NULL, '[');
            if (r->form == PB_RECORDS_JSON)
                pb_json_line(&r->json, 2);
            pb_json_open(&r->json, NULL, '{');
        }
        put_value(r, kind, r->names[column], text, length);
        if (last)
            pb_json_close(&r->json);
        if (last && r->form == PB_RECORDS_JSONL)
            putc('\n', r->out);
    }
    r->nfields++;
}

void pb_records_end(struct pb_records *r)
{
    if (r->form != PB_RECORDS_JSON)
        return;
    if (r->nfields)
        pb_json_line(&r->json, 0);
    else
        pb_json_open(&r->json, NULL, '[');
    pb_json_close(&r->json);
    putc('\n', r->out);
}
