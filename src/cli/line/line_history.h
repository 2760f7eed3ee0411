/* line_history: earlier inputs of a prompt, oldest first, kept in a file. Used by line_*.c alone.
 *
 * The file (0600) has one line per entry, with line ends and backslashes escaped. Every prompt appends each
 * input at once, so that two prompts lose nothing; the file is cut to its newest entries when it is opened.
 * An entry too long for the file is kept until the prompt ends. */
#pragma once

#include <stddef.h>

#define PB_HISTORY_MAX   1000u        /* entries */
#define PB_HISTORY_BYTES (256u << 10) /* longest entry that is written to the file */

struct pb_line_history {
    char **at;
    size_t n;
    char *path; /* NULL: no file */
};

/* path NULL: no file is kept. A file that cannot be read, or belongs to another user, is ignored. -ENOMEM. */
int pb_line_history_open(const char *path, struct pb_line_history *ret);
void pb_line_history_done(struct pb_line_history *h);

/* Adds an entry, unless it is blank or equals the newest one. */
void pb_line_history_add(struct pb_line_history *h, const char *text);
