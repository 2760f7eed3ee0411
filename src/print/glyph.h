/* glyph: text as a terminal shows it: how wide a character is, and what must not reach a terminal as it is.
 *
 * Text comes from other programs. What a terminal would take as a command (control characters, those that
 * turn the direction of writing) and what is not UTF-8 is shown by its number. No locale is asked: the answer
 * is the same everywhere. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_glyph {
    size_t bytes;     /* of the text that it stands for; never 0 */
    unsigned columns; /* its width; 0: it combines with the character before */
    char shown[12];   /* terminated: itself, or \n, \t, \xNN, \uNNNN */
};

/* Reads the character at text; `left` bytes are there, at least one. */
void pb_glyph_read(const char *text, size_t left, struct pb_glyph *ret);

/* Columns of a whole text. */
size_t pb_glyph_columns(const char *text, size_t length);
