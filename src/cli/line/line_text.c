/* line_text: see line_text.h. */
#include "cli/line/line_text.h"

#include "cli/line/line_edit.h"
#include "print/glyph.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void pb_line_text_done(struct pb_line_text *t)
{
    free(t->at);
    *t = (struct pb_line_text){0};
}

int pb_line_text_insert(struct pb_line_text *t, const char *text, size_t n)
{
    if (n > PB_LINE_MAX - t->n)
        return -EFBIG;
    if (t->n + n + 1 > t->room) {
        size_t room = 2 * (t->n + n) + 64;
        char *more = realloc(t->at, room);
        if (!more)
            return -ENOMEM;
        t->at = more;
        t->room = room;
    }
    memmove(t->at + t->cursor + n, t->at + t->cursor, t->n - t->cursor);
    memcpy(t->at + t->cursor, text, n);
    t->n += n;
    t->cursor += n;
    t->at[t->n] = '\0';
    return 0;
}

int pb_line_text_set(struct pb_line_text *t, const char *text)
{
    t->n = t->cursor = 0;
    return pb_line_text_insert(t, text, strlen(text));
}

void pb_line_text_erase(struct pb_line_text *t, size_t from, size_t to)
{
    if (from >= to)
        return;
    memmove(t->at + from, t->at + to, t->n - to);
    t->n -= to - from;
    t->at[t->n] = '\0';
    t->cursor = t->cursor >= to ? t->cursor - (to - from) : t->cursor > from ? from : t->cursor;
}

size_t pb_line_text_right(const struct pb_line_text *t, size_t at)
{
    struct pb_glyph g;

    if (at >= t->n)
        return t->n;
    pb_glyph_read(t->at + at, t->n - at, &g);
    for (at += g.bytes; at < t->n; at += g.bytes) {
        pb_glyph_read(t->at + at, t->n - at, &g);
        if (g.columns > 0)
            break;
    }
    return at;
}

/* The start of the character before `at`. Found forwards from the start of the line, since bytes that are not
 * UTF-8 cannot be read backwards. */
size_t pb_line_text_left(const struct pb_line_text *t, size_t at)
{
    size_t from = pb_line_text_line_begin(t, at);

    if (from == at)
        return at ? at - 1 : 0;
    for (size_t next = pb_line_text_right(t, from); next < at; next = pb_line_text_right(t, next))
        from = next;
    return from;
}

/* Every byte beyond ASCII counts as part of a word. */
static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

size_t pb_line_text_word_left(const struct pb_line_text *t, size_t at)
{
    while (at > 0 && !in_word(t->at[at - 1]))
        at--;
    while (at > 0 && in_word(t->at[at - 1]))
        at--;
    return at;
}

size_t pb_line_text_word_right(const struct pb_line_text *t, size_t at)
{
    while (at < t->n && !in_word(t->at[at]))
        at++;
    while (at < t->n && in_word(t->at[at]))
        at++;
    return at;
}

size_t pb_line_text_line_begin(const struct pb_line_text *t, size_t at)
{
    while (at > 0 && t->at[at - 1] != '\n')
        at--;
    return at;
}

size_t pb_line_text_line_end(const struct pb_line_text *t, size_t at)
{
    while (at < t->n && t->at[at] != '\n')
        at++;
    return at;
}

/* The place `column` columns into the line that begins at `line`, or the line's end. */
static size_t at_column(const struct pb_line_text *t, size_t line, size_t column)
{
    size_t at = line, end = pb_line_text_line_end(t, line);

    while (at < end) {
        size_t next = pb_line_text_right(t, at);
        if (next > end || pb_glyph_columns(t->at + line, next - line) > column)
            break;
        at = next;
    }
    return at;
}

static size_t column_of(const struct pb_line_text *t)
{
    size_t line = pb_line_text_line_begin(t, t->cursor);
    return t->n ? pb_glyph_columns(t->at + line, t->cursor - line) : 0;
}

bool pb_line_text_up(struct pb_line_text *t)
{
    size_t line = pb_line_text_line_begin(t, t->cursor);

    if (line == 0)
        return false;
    t->cursor = at_column(t, pb_line_text_line_begin(t, line - 1), column_of(t));
    return true;
}

bool pb_line_text_down(struct pb_line_text *t)
{
    size_t end = pb_line_text_line_end(t, t->cursor);

    if (end == t->n)
        return false;
    t->cursor = at_column(t, end + 1, column_of(t));
    return true;
}
