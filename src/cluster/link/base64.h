/* base64: bytes as text that launchers and terminals pass on as it is (RFC 4648, with padding). */
#pragma once

#include <stddef.h>

#define PB_BASE64_SIZE(n) (((n) + 2) / 3 * 4)

/* Writes PB_BASE64_SIZE(n) characters, no NUL. */
void pb_base64_encode(const void *bytes, size_t n, char *ret);
/* The six bits of a character; -1: not in the alphabet. */
int pb_base64_value(unsigned char c);
