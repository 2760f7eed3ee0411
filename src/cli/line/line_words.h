/* line_words: what a word may be completed to. Used by line_*.c alone. */
#pragma once

#include "cli/line/line_edit.h"

struct pb_line_words {
    char **at;
    size_t n, room;
};

void pb_line_words_done(struct pb_line_words *w);

/* Bytes that all of them begin with. */
size_t pb_line_words_common(const struct pb_line_words *w);

/* Lists them in columns, as many as the terminal has room for. */
void pb_line_words_show(const struct pb_line_words *w, int out);
