/* text: text of other programs, made fit for one line: stored, sent, or put into a message. What goes out to
 * a terminal is looked at once more (print/outlet.h). UTF-8. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the character at text, of which `left` bytes are there; 0: it is not UTF-8. */
size_t pb_utf8_read(const char *text, size_t left, uint32_t *ret_code);

/* A character that a terminal takes for a command: control characters of ASCII and C1. */
bool pb_text_is_control(uint32_t code);
/* One that turns the direction of writing, or that a terminal may take for the end of a line. */
bool pb_text_is_turn(uint32_t code);

/* Replaces, in place, line ends and tabs by a blank, and each of the above, and each byte that is not UTF-8,
 * by a question mark. Returns the length, which is no longer than it was. */
size_t pb_text_clean(char *text);

/* Whether there is nothing to replace. */
bool pb_text_is_clean(const char *text);

bool pb_text_ends_with(const char *text, const char *ending);
