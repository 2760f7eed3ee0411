/* line_draw: see line_draw.h.
 *
 * Each row of the screen is written with its own line end, so that its position is known. When the terminal
 * becomes narrower it breaks the rows drawn before: into how many follows from its width. */
#include "cli/line/line_draw.h"

#include "base/vector.h"
#include "cli/print/terminal.h"
#include "print/glyph.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A row of the screen: part of the text, after a prompt where a line begins. */
struct row {
    const char *prompt; /* NULL: continues the row before */
    size_t from, to;
    unsigned width;
};

struct rows {
    struct row *at;
    size_t n, room;
    size_t cursor_row;
    unsigned cursor_column;
};

int pb_line_write(int out, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(out, text, n);
        if (done < 0 && errno != EINTR)
            return -errno;
        if (done > 0) {
            text += done;
            n -= (size_t)done;
        }
    }
    return 0;
}

/* A tab in the user's text is drawn as four blanks. */
static void read_glyph(const struct pb_line_text *t, size_t at, struct pb_glyph *ret)
{
    pb_glyph_read(t->at + at, t->n - at, ret);
    if (t->at[at] == '\t')
        *ret = (struct pb_glyph){.bytes = 1, .columns = 4, .shown = "    "};
}

static struct row *add_row(struct rows *rows, const char *prompt, size_t from)
{
    if (pb_grow((void **)&rows->at, &rows->room, rows->n, sizeof(*rows->at), NULL) < 0)
        return NULL;
    struct row *row = &rows->at[rows->n++];
    *row = (struct row){.prompt = prompt, .from = from, .to = from};
    row->width = prompt ? (unsigned)pb_glyph_columns(prompt, strlen(prompt)) : 0;
    return row;
}

static int lay_out(struct rows *rows, const char *prompt, const char *more, const struct pb_line_text *t,
                   unsigned columns)
{
    struct row *row = add_row(rows, prompt, 0);
    struct pb_glyph g;

    for (size_t i = 0; row; i += g.bytes) {
        bool end = i == t->n, newline = !end && t->at[i] == '\n';
        g = (struct pb_glyph){.bytes = 1, .columns = 1};
        if (!end && !newline)
            read_glyph(t, i, &g);
        /* A full row has no room for the cursor: it needs another row. */
        bool full = row->width + g.columns > columns && (!newline || i == t->cursor);
        if (full && (!end || i == t->cursor) && !(row = add_row(rows, NULL, i)))
            break;
        if (i == t->cursor) {
            rows->cursor_row = rows->n - 1;
            rows->cursor_column = row->width;
        }
        row->to = i;
        if (end)
            return 0;
        if (newline) {
            row = add_row(rows, more, i + 1);
        } else {
            row->to += g.bytes;
            row->width += g.columns;
        }
    }
    return -ENOMEM;
}

/* Moves to the first column of the drawn text, as the terminal shows it now. */
static void go_to_top(FILE *to, const struct pb_line_screen *s, unsigned columns)
{
    unsigned up = s->nrows ? s->cursor_column / columns : 0;

    for (unsigned i = 0; i < s->cursor_row; i++)
        up += s->widths[i] ? (s->widths[i] + columns - 1) / columns : 1;
    if (up)
        fprintf(to, "\033[%uA", up);
    fputs("\r\033[J", to);
}

static void put_row(FILE *to, const struct row *row, const struct pb_line_text *t)
{
    struct pb_glyph g;

    if (row->prompt)
        fputs(row->prompt, to);
    for (size_t i = row->from; i < row->to; i += g.bytes) {
        read_glyph(t, i, &g);
        fputs(g.shown, to);
    }
}

static void put_rows(FILE *to, struct pb_line_screen *s, const struct rows *rows,
                     const struct pb_line_text *t, size_t height)
{
    size_t n = rows->n < height ? rows->n : height;
    size_t first = rows->cursor_row < n ? 0 : rows->cursor_row + 1 - n;

    for (size_t i = 0; i < n; i++) {
        put_row(to, &rows->at[first + i], t);
        s->widths[i] = rows->at[first + i].width;
        fputs(i + 1 < n ? "\r\n" : "", to);
    }
    s->nrows = (unsigned)n;
    s->cursor_row = (unsigned)(rows->cursor_row - first);
    s->cursor_column = rows->cursor_column;
    if (s->cursor_row + 1 < n)
        fprintf(to, "\033[%uA", (unsigned)n - 1 - s->cursor_row);
    fputc('\r', to);
    if (s->cursor_column)
        fprintf(to, "\033[%uC", s->cursor_column);
}

int pb_line_draw(struct pb_line_screen *s, const char *prompt, const char *more, const struct pb_line_text *t)
{
    struct rows rows = {0};
    char *text = NULL;
    size_t size;
    int height, columns;

    pb_terminal_size(s->out, &height, &columns);
    height = height > PB_LINE_ROWS ? PB_LINE_ROWS : height;
    /* No sense below 20 columns, but the layout must end. */
    columns = columns < 20 ? 20 : columns;
    int r = lay_out(&rows, prompt, more, t, (unsigned)columns);
    FILE *to = r == 0 ? open_memstream(&text, &size) : NULL;
    if (to) {
        go_to_top(to, s, (unsigned)columns);
        put_rows(to, s, &rows, t, (size_t)height);
        r = fclose(to) == 0 ? pb_line_write(s->out, text, size) : -ENOMEM;
    } else {
        r = -ENOMEM;
    }
    free(text);
    free(rows.at);
    return r;
}

void pb_line_draw_end(struct pb_line_screen *s, const char *after)
{
    char text[128];
    unsigned down = s->nrows ? s->nrows - 1 - s->cursor_row : 0;
    int n = 0;

    if (down)
        n = snprintf(text, sizeof(text), "\033[%uB", down);
    n += snprintf(text + n, sizeof(text) - (size_t)n, "%s\r\n", after);
    pb_line_write(s->out, text, (size_t)n);
    *s = (struct pb_line_screen){.out = s->out};
}
