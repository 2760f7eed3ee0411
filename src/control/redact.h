/* redact: values that nobody should see in a table, in a file or on a screen, told by the names they go by.
 *
 * The one implementation for variables of the environment, locals and arguments, dict keys and attributes in
 * them, and options of command lines. words are those of probing.redact, with commas or blanks between them;
 * a name that contains one of them, in any case, names a secret. No heap. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PB_REDACTED    "***"
#define PB_REDACT_SIZE 640 /* of words: a process's, a tool's, and the default's */

bool pb_redact_name(const char *words, const char *name, size_t length);

/* Masks, in place, what secret options of a command line are given: --token=x, --token x, API_KEY=x. args are
 * NUL-separated; they are joined by blanks. Returns the new length. */
size_t pb_redact_command(const char *words, char *args, size_t length);
