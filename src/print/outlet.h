/* outlet: what goes out to a person passes here, and only text leaves it.
 *
 * Names, lines of source, values and messages come from other programs. Whatever code prints them, and
 * however they were put together: a terminal gets no control character of theirs, nothing that turns the
 * direction of writing and no invalid UTF-8, but their numbers (glyph.h). Line ends and tabs stay; a name
 * within a line goes out by pb_put_line. Sequences of our own begin with pb_escape: a tag that no other
 * program can know tells them apart. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Makes stdout and stderr go through here where they are terminals; if not bytes, also where they are pipes
 * or files. Before anything is printed. */
void pb_outlet_begin(bool bytes);

/* From here on stdout is what a command elsewhere draws for this terminal, with sequences that begin with a
 * plain "\033". Those that our commands draw with pass, and no others: what answers there may be
 * anybody. */
void pb_outlet_take_drawn(void);

/* The beginning of a sequence of ours, in place of "\033": followed by "[", numbers and a letter. For output
 * that goes through an outlet to a terminal. */
const char *pb_escape(void);

/* The length of a sequence of ours at text; 0: there is none. */
size_t pb_escape_length(const char *text, size_t left);

enum pb_style { PB_PLAIN, PB_BOLD, PB_DIM, PB_REVERSE, PB_CYAN, PB_BOLD_RED };

/* The sequence that begins it; valid until the program ends. */
const char *pb_style(enum pb_style style);

/* Prints len bytes of text of other programs within a line: a line end in it is shown by number too. */
void pb_put_line(FILE *to, const char *text, size_t len);
void pb_put_name(FILE *to, const char *text);

/* Prints an error or a note, and a line end. Its lines after the first are indented: a name with a line end
 * in it must not look like output of ours. */
void pb_put_sentence(FILE *to, const char *text);

/* As pb_put_name, between two texts of ours. */
void pb_put_between(FILE *to, const char *before, const char *text, const char *after);
