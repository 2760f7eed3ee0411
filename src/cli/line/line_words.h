/* line_words: completions of a word. Used by line_*.c alone. */
#pragma once

#include "cli/line/line_edit.h"

struct pb_line_words {
    char **at;
    size_t n, room;
};

void pb_line_words_done(struct pb_line_words *w);

/* Length of the prefix that all words share. */
size_t pb_line_words_common(const struct pb_line_words *w);

/* Lists the words in columns, as many as fit the terminal. */
void pb_line_words_show(const struct pb_line_words *w, int out);
