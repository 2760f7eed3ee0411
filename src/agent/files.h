/* files: small files read without the heap of the process. */
#pragma once

#include <stddef.h>

/* What fits into buf, ended with NUL. Returns its length or negative errno; buf is "" then. */
long pb_file_read(const char *path, char *buf, size_t size);

/* A whole file in memory of its own, up to 4 MB of it; data is "" and size 0 where it cannot be read. */
struct pb_block {
    char *data;
    size_t size, mapped;
};
void pb_file_slurp(const char *path, struct pb_block *ret);
void pb_block_done(struct pb_block *block);
