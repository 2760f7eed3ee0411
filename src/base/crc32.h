/* crc32: the checksum of gzip and zip. Tools only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Continues crc, which begins as 0, with n bytes. */
uint32_t pb_crc32(uint32_t crc, const void *bytes, size_t n);
