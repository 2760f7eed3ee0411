/* redact: values that nobody should see on a screen or in a file, told by the names they go by.
 *
 * The words are those of probing.redact (PROBING_REDACT): key, token, secret, password, credential unless
 * set. A name that contains one of them, in any case, names a secret. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PB_REDACTED "***"

bool pb_redact_name(const char *name, size_t length);

/* Masks, in place, what secret options of a command line are given: --token=x, --token x, API_KEY=x. args are
 * NUL-separated; they are joined by blanks. Returns the new length. */
size_t pb_redact_command(char *args, size_t length);
