/* redact: masks secrets in tables, in files and on screens; a secret is recognised by its name.
 *
 * The one implementation for variables of the environment, locals and arguments, dict keys and attributes in
 * them, and options of command lines. words are those of probing.redact, with commas or blanks between them,
 * in any case. What the words of the default mean is a table of facts, so that what people debug is shown:
 *   secret, password, passwd, credential  a part of the name that is it or ends with it: db_password,
 * PGPASSWORD key    with a part before it that says what for: api_key, apiKey, private_key; OPENAI_KEY in
 * capitals. Not: key, key_states, src_key_padding_mask, sort_key. token  as the end of the name: hf_token,
 * authToken. Not: token_count, tokens, eos_token, next_token. Any other word counts wherever it stands in the
 * name. Only text and bytes are masked, which is the caller's part: a number, a tensor or a module by such a
 * name is no secret. No heap, no locale. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PB_REDACTED    "***"
#define PB_REDACT_SIZE 640 /* of words: a process's, a tool's, and the default's */

bool pb_redact_name(const char *words, const char *name, size_t length);

/* Masks, in place, what secret options of a command line are given: --token=x, --token x, API_KEY=x. args are
 * NUL-separated; they are joined by blanks. Returns the new length. */
size_t pb_redact_command(const char *words, char *args, size_t length);
