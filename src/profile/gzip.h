/* gzip: bytes compressed into a gzip stream, in one piece. Our own small deflate: the program links libc
 * only. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Writes a whole gzip file of data. -ENOMEM, or the error of the stream. */
int pb_gzip_write(FILE *out, const uint8_t *data, size_t len);
