/* replace: writes a file beside the one that it replaces, and renames it: a file appears whole or not at all,
 * and no link that another user made in the folder leads the writing elsewhere. A device or a pipe is written
 * to as it is. Tools only. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

struct pb_replace {
    FILE *out;
    char *part; /* NULL: a device or a pipe */
    const char *path;
};

/* Whether path is a link that another user but root has not made. Others are replaced, wherever they lead. */
bool pb_replace_follows(const char *path);

/* path must stay valid until pb_replace_end. */
int pb_replace_begin(const char *path, struct pb_replace *ret);

/* Closes the file. It takes the name if result, what the writing returned, is not negative. Returns result,
 * or the first error. */
int pb_replace_end(struct pb_replace *r, int result);
