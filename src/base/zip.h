/* zip: several files as one that any program for zip files opens. Tools only.
 *
 * Parts are stored as they are, not compressed: what is large in ours is Parquet, which is compressed
 * already, and a reader without an inflater has less to get wrong. No ZIP64: a file is at most 4 GB. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct pb_err;

enum { PB_ZIP_END = 22, PB_ZIP_PARTS = 60000, PB_ZIP_NAME = 400, PB_ZIP_DEPTH = 16 };
#define PB_ZIP_BYTES ((uint64_t)4000 << 20)

struct pb_zip_part {
    char *name;
    uint32_t crc, size, offset;
};

struct pb_zip {
    FILE *out;
    struct pb_zip_part *at;
    size_t n;
    uint64_t written;
};

/* What a part takes in the file beside its bytes. */
size_t pb_zip_overhead(const char *name);

/* Adds what is left of `in`. -EINVAL: the name is not one for a part; -E2BIG; -EIO. */
int pb_zip_add(struct pb_zip *z, const char *name, FILE *in);
/* Writes the list of parts: without it the file cannot be read. */
int pb_zip_end(struct pb_zip *z);
void pb_zip_done(struct pb_zip *z);

/* Writes all parts of the file as files below the folder, which is empty. The file is not trusted: a name
 * leads nowhere else, no part is larger than what is there, none lies over another, and checksums count.
 * -EBADMSG: err says what is wrong with it, beginning with its path. */
int pb_zip_unpack(const char *path, int folder, struct pb_err *err);
