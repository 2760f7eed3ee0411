/* line_words: see line_words.h. */
#include "cli/line/line_words.h"

#include "base/vector.h"
#include "cli/line/line_draw.h"
#include "cli/print/terminal.h"
#include "print/glyph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 5000, GAP = 2 };

void pb_line_words_done(struct pb_line_words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->at[i]);
    free(w->at);
    *w = (struct pb_line_words){0};
}

void pb_line_offer(struct pb_line_words *to, const char *word)
{
    for (size_t i = 0; i < to->n; i++)
        if (strcmp(to->at[i], word) == 0)
            return;
    if (to->n >= WORDS_MAX || pb_grow((void **)&to->at, &to->room, to->n, sizeof(*to->at), NULL) < 0)
        return;
    char *copy = strdup(word);
    if (copy)
        to->at[to->n++] = copy;
}

size_t pb_line_words_common(const struct pb_line_words *w)
{
    size_t common = w->n ? strlen(w->at[0]) : 0;

    for (size_t i = 1; i < w->n; i++)
        for (size_t k = 0; k < common; k++)
            if (w->at[i][k] != w->at[0][k])
                common = k;
    return common;
}

static void put_word(FILE *to, const char *word, size_t width)
{
    size_t n = strlen(word), columns = pb_glyph_columns(word, n);
    struct pb_glyph g;

    for (size_t i = 0; i < n; i += g.bytes) {
        pb_glyph_read(word + i, n - i, &g);
        fputs(g.shown, to);
    }
    for (; columns < width; columns++)
        fputc(' ', to);
}

void pb_line_words_show(const struct pb_line_words *w, int out)
{
    size_t width = 0, size, shown;
    char *text = NULL;
    int height, columns;

    for (size_t i = 0; i < w->n; i++) {
        size_t n = pb_glyph_columns(w->at[i], strlen(w->at[i])) + GAP;
        width = n > width ? n : width;
    }
    pb_terminal_size(out, &height, &columns);
    size_t across = (size_t)columns > width ? (size_t)columns / width : 1;
    size_t most = across * (size_t)(height > 6 ? height - 4 : 2);
    shown = w->n < most ? w->n : most;
    size_t lines = (shown + across - 1) / across;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return;
    for (size_t line = 0; line < lines; line++) {
        for (size_t i = line; i < shown; i += lines)
            put_word(to, w->at[i], i + lines < shown ? width : 0);
        fputs("\r\n", to);
    }
    if (shown < w->n)
        fprintf(to, "... and %zu more\r\n", w->n - shown);
    if (fclose(to) == 0)
        pb_line_write(out, text, size);
    free(text);
}
