/* small_files: small files read without the heap of the process. */
#pragma once

#include <stddef.h>

/* Reads as much as fits into buf, ended with NUL. Returns its length or negative errno; then buf is "". */
long pb_file_read(const char *path, char *buf, size_t size);

/* A whole file in its own memory, up to 4 MB of it; if it cannot be read data is "" and size 0. */
struct pb_block {
    char *data;
    size_t size, mapped;
};
void pb_file_slurp(const char *path, struct pb_block *ret);
void pb_block_done(struct pb_block *block);
