/* line_text: the text that a prompt edits, and where its characters, words and lines begin. Used by line_*.c
 * alone.
 *
 * Places are byte offsets, always between two characters; combining marks stay with their character. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct pb_line_text {
    char *at; /* NUL-terminated; NULL: empty */
    size_t n, room, cursor;
};

void pb_line_text_done(struct pb_line_text *t);

/* Inserts at the cursor and moves it behind the text. -ENOMEM; -EFBIG: longer than PB_LINE_MAX; the text is
 * unchanged then. */
int pb_line_text_insert(struct pb_line_text *t, const char *text, size_t n);

/* Replaces the text; the cursor goes to its end. */
int pb_line_text_set(struct pb_line_text *t, const char *text);
void pb_line_text_erase(struct pb_line_text *t, size_t from, size_t to);

/* The place one character, word or line before or after `at`. */
size_t pb_line_text_left(const struct pb_line_text *t, size_t at);
size_t pb_line_text_right(const struct pb_line_text *t, size_t at);
size_t pb_line_text_word_left(const struct pb_line_text *t, size_t at);
size_t pb_line_text_word_right(const struct pb_line_text *t, size_t at);
size_t pb_line_text_line_begin(const struct pb_line_text *t, size_t at);
size_t pb_line_text_line_end(const struct pb_line_text *t, size_t at);

/* Moves the cursor to the same column of the line above or below. False: there is no such line. */
bool pb_line_text_up(struct pb_line_text *t);
bool pb_line_text_down(struct pb_line_text *t);
