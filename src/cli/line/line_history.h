/* line_history: what was entered at a prompt before, oldest first, kept in a file. Used by line_*.c alone.
 *
 * The file (0600) has a line an entry, with line ends and backslashes inside it escaped. Every prompt appends
 * to it as it goes, so that two at once lose nothing; it is cut to its newest entries when it is opened. An
 * entry too long to be kept is known until the prompt ends. */
#pragma once

#include <stddef.h>

#define PB_HISTORY_MAX   1000u        /* entries */
#define PB_HISTORY_BYTES (256u << 10) /* of one entry that is kept */

struct pb_line_history {
    char **at;
    size_t n;
    char *path; /* NULL: not kept */
};

/* path NULL: nothing is kept. A file that cannot be read, or is not the user's own, is as none. -ENOMEM. */
int pb_line_history_open(const char *path, struct pb_line_history *ret);
void pb_line_history_done(struct pb_line_history *h);

/* The newest one; nothing where it is blank or as the one before. */
void pb_line_history_add(struct pb_line_history *h, const char *text);
