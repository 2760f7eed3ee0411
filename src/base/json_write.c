/* json_write: see json_write.h. */
#include "base/json_write.h"

#include "base/text.h"

#include <stdarg.h>
#include <string.h>

static bool is_plain(char c)
{
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x7f;
}

/* One character that is not printable ASCII. What is not UTF-8 becomes U+FFFD: JSON cannot hold it. Returns
 * its length. */
static size_t put_other(FILE *out, const char *text, size_t left)
{
    uint32_t code;
    size_t n = pb_utf8_read(text, left, &code);

    if (n == 0)
        fputs("\xef\xbf\xbd", out);
    else if (code == '\n')
        fputs("\\n", out);
    else if (pb_text_is_control(code) || pb_text_is_turn(code))
        fprintf(out, "\\u%04x", code);
    else
        fwrite(text, 1, n, out);
    return n ? n : 1;
}

/* quotes: those within are escaped, too. */
static void put_escaped(FILE *out, const char *text, size_t length, bool quotes)
{
    for (size_t i = 0, n; i < length; i += n) {
        for (n = 0; i + n < length && is_plain(text[i + n]) &&
                    !(quotes && (text[i + n] == '"' || text[i + n] == '\\'));)
            n++;
        if (n) {
            fwrite(text + i, 1, n, out);
        } else if (is_plain(text[i])) {
            putc('\\', out);
            putc(text[i], out);
            n = 1;
        } else {
            n = put_other(out, text + i, length - i);
        }
    }
}

static void put_quoted(FILE *out, const char *text, size_t length)
{
    putc('"', out);
    put_escaped(out, text, length, true);
    putc('"', out);
}

static void put_line(struct pb_json_writer *w)
{
    putc('\n', w->out);
    for (int i = 1; i < w->line; i++)
        putc(' ', w->out);
    w->line = 0;
}

/* What stands between the value before and this one. */
static void next(struct pb_json_writer *w, const char *key)
{
    uint32_t bit = 1u << w->depth;

    if (w->keyed) {
        w->keyed = false;
        return;
    }
    if (w->some & bit)
        putc(',', w->out);
    if (w->line)
        put_line(w);
    else if (w->some & bit && !w->tight)
        putc(' ', w->out);
    w->some |= w->depth ? bit : 0;
    if (key) {
        put_quoted(w->out, key, strlen(key));
        fputs(w->tight ? ":" : ": ", w->out);
    }
}

void pb_json_key(struct pb_json_writer *w, const char *key)
{
    next(w, key);
    w->keyed = true;
}

void pb_json_open(struct pb_json_writer *w, const char *key, char kind)
{
    next(w, key);
    putc(kind, w->out);
    w->depth += w->depth + 1 < PB_JSON_DEPTH;
    w->some &= ~(1u << w->depth);
    w->array &= ~(1u << w->depth);
    w->array |= (uint32_t)(kind == '[') << w->depth;
}

void pb_json_close(struct pb_json_writer *w)
{
    if (w->line)
        put_line(w);
    putc(w->array >> w->depth & 1 ? ']' : '}', w->out);
    w->depth--;
}

void pb_json_line(struct pb_json_writer *w, int blanks)
{
    w->line = 1 + blanks;
}

void pb_json_put_bytes(struct pb_json_writer *w, const char *key, const char *text, size_t length)
{
    next(w, key);
    put_quoted(w->out, text, length);
}

void pb_json_put_text(struct pb_json_writer *w, const char *key, const char *text)
{
    if (text)
        pb_json_put_bytes(w, key, text, strlen(text));
    else
        pb_json_put_null(w, key);
}

void pb_json_put_value(struct pb_json_writer *w, const char *key, const char *text, size_t length)
{
    next(w, key);
    put_escaped(w->out, text, length, false);
}

void pb_json_put_made(struct pb_json_writer *w, const char *key, const char *text, size_t length)
{
    next(w, key);
    fwrite(text, 1, length, w->out);
}

void pb_json_put_bool(struct pb_json_writer *w, const char *key, bool value)
{
    next(w, key);
    fputs(value ? "true" : "false", w->out);
}

void pb_json_put_null(struct pb_json_writer *w, const char *key)
{
    next(w, key);
    fputs("null", w->out);
}

void pb_json_put_number(struct pb_json_writer *w, const char *key, const char *format, ...)
{
    va_list ap;

    next(w, key);
    va_start(ap, format);
    vfprintf(w->out, format, ap);
    va_end(ap);
}

void pb_json_put_format(struct pb_json_writer *w, const char *key, const char *format, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    pb_json_put_text(w, key, text);
}
