/* line_draw: a prompt and its text on the screen, drawn again in place. Used by line_*.c alone. */
#pragma once

#include "cli/line/line_text.h"

#define PB_LINE_ROWS 512 /* of the screen that are used at most */

/* What stands on the screen. Zero: nothing. */
struct pb_line_screen {
    int out;
    unsigned widths[PB_LINE_ROWS]; /* of the rows drawn */
    unsigned nrows, cursor_row, cursor_column;
};

/* Draws it, in one write, over what was drawn before; as much of it around the cursor as the screen has room
 * for. */
int pb_line_draw(struct pb_line_screen *s, const char *prompt, const char *more,
                 const struct pb_line_text *t);

/* Goes below what was drawn and begins anew there. after: shown behind it, "" for nothing. */
void pb_line_draw_end(struct pb_line_screen *s, const char *after);

/* All of it, whatever the terminal takes at a time. */
int pb_line_write(int out, const char *text, size_t n);
