/* values: the values of options, by the types that the tables of options give them. parse.c checks each value
 * before a command runs: the functions for a command cannot fail. */
#pragma once

#include "cli/cli.h"

/* PB_USAGE: the text is no such value; err says why. */
int pb_value_check(const struct pb_option *o, const char *text, struct pb_err *err);

/* Which of the choices, separated by blanks, the text is; -ENOENT: none. */
int pb_value_choice(const char *choices, const char *text);

/* The value of a command's own option, or else its usual one: a time in milliseconds; a size, count or
 * number. */
unsigned pb_call_ms(const struct pb_call *call, const char *name);
double pb_call_number(const struct pb_call *call, const char *name);

/* "30", "1.5s", "500ms", "2m": milliseconds. -EINVAL. */
int pb_parse_duration(const char *text, unsigned *ret_ms);
