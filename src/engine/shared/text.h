/* text: SQL as text: where statements end, and the few words that are rewritten before DuckDB sees them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The end of the statement that starts at text: the place of its semicolon, or end. Quotes, dollar quotes and
 * comments are passed over. */
const char *pb_sql_statement_end(const char *text, const char *end);

/* Whether nothing but blanks, comments and semicolons is there. */
bool pb_sql_is_blank(const char *text, const char *end);

/* A copy, of malloc and terminated, in which system.NAME is spelled memory.system.NAME for each NAME of
 * ours: DuckDB has a catalog called system and would find the name ambiguous. NULL: out of memory. */
char *pb_sql_qualify(const char *text, const char *end, const char *const names[]);

/* What follows the first word, if it is this one, whatever its case; NULL: it is another. */
const char *pb_sql_after_word(const char *text, const char *word);

/* What follows the parentheses that the text begins with, and what they hold; NULL: it does not begin so. */
const char *pb_sql_after_parentheses(const char *text, const char **ret_inside);

/* Whether the word stands there, outside of quotes and comments. */
bool pb_sql_has_word(const char *text, const char *word);

/* Edits between two names, up to a bound beyond which they are not alike; case does not count. */
int pb_name_distance(const char *a, const char *b);

/* Text between quotes as SQL has it: a quote in it is doubled. */
void pb_put_quoted(FILE *out, const char *text, char quote);
