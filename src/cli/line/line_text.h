/* line_text: the text that a prompt edits, and where its characters, words and lines begin. Used by line_*.c
 * alone.
 *
 * Places are bytes from its beginning, always between two characters: what goes onto a character stays with
 * it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct pb_line_text {
    char *at; /* terminated; NULL: empty and never filled */
    size_t n, room, cursor;
};

void pb_line_text_done(struct pb_line_text *t);

/* At the cursor, which goes behind it. -ENOMEM; -EFBIG: it would be longer than PB_LINE_MAX. Unchanged then.
 */
int pb_line_text_insert(struct pb_line_text *t, const char *text, size_t n);

/* Another text, the cursor at its end. */
int pb_line_text_set(struct pb_line_text *t, const char *text);
void pb_line_text_erase(struct pb_line_text *t, size_t from, size_t to);

/* The place one further from at. */
size_t pb_line_text_left(const struct pb_line_text *t, size_t at);
size_t pb_line_text_right(const struct pb_line_text *t, size_t at);
size_t pb_line_text_word_left(const struct pb_line_text *t, size_t at);
size_t pb_line_text_word_right(const struct pb_line_text *t, size_t at);
size_t pb_line_text_line_begin(const struct pb_line_text *t, size_t at);
size_t pb_line_text_line_end(const struct pb_line_text *t, size_t at);

/* Moves the cursor to the same column of the line above or below. False: there is none. */
bool pb_line_text_up(struct pb_line_text *t);
bool pb_line_text_down(struct pb_line_text *t);
