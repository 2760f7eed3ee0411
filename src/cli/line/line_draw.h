/* line_draw: a prompt and its text on the screen, drawn again in place. Used by line_*.c alone. */
#pragma once

#include "cli/line/line_text.h"

#define PB_LINE_ROWS 512 /* most rows of the screen that are used */

/* The rows on the screen. Zero: nothing is drawn. */
struct pb_line_screen {
    int out;
    unsigned widths[PB_LINE_ROWS]; /* of the rows drawn */
    unsigned nrows, cursor_row, cursor_column;
};

/* Draws the text in one write over the previous one; only as much around the cursor as fits the screen. */
int pb_line_draw(struct pb_line_screen *s, const char *prompt, const char *more,
                 const struct pb_line_text *t);

/* Moves below the drawn text and starts over. after: printed behind the text; "" for nothing. */
void pb_line_draw_end(struct pb_line_screen *s, const char *after);

/* Writes all of it, however little the terminal takes at a time. */
int pb_line_write(int out, const char *text, size_t n);
