/* redact: masks secrets in tables, in files and on screens; a secret is recognised by its name.
 *
 * The one implementation for environment variables, locals, arguments, dict keys, attributes and options of
 * command lines. words are those of probing.redact, separated by commas or blanks, in any case. The words of
 * the default have rules of their own, so that values needed for debugging stay visible:
 *   secret, password, passwd, credential: a part of the name, or the end of one: db_password, PGPASSWORD
 *   key: after a part that says what for: api_key, apiKey, private_key; OPENAI_KEY in capitals. Not: key,
 * key_states, src_key_padding_mask, sort_key.
 *   token: at the end of the name: hf_token, authToken. Not: token_count, tokens, eos_token, next_token.
 * Any other word counts anywhere in the name. The caller masks text and bytes only: a number, a tensor or a
 * module is no secret. No heap, no locale. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PB_REDACTED    "***"
#define PB_REDACT_SIZE 640 /* of words: a process's, a tool's, and the default's */

bool pb_redact_name(const char *words, const char *name, size_t length);

/* Masks, in place, the values of secret options of a command line: --token=x, --token x, API_KEY=x. args are
 * NUL-separated; they are joined by blanks. Returns the new length. */
size_t pb_redact_command(const char *words, char *args, size_t length);
