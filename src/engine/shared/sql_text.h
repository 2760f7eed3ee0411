/* sql_text: SQL as text: finds the ends of statements, and rewrites a few words before DuckDB sees them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The end of the statement that starts at text: its semicolon, or end. Quotes, dollar quotes and comments are
 * skipped. */
const char *pb_sql_statement_end(const char *text, const char *end);

/* Whether it has only blanks, comments and semicolons. */
bool pb_sql_is_blank(const char *text, const char *end);

/* A NUL-terminated copy from malloc, in which system.NAME becomes memory.system.NAME for each NAME of ours:
 * DuckDB has a catalog called system and would find the name ambiguous. NULL: out of memory. */
char *pb_sql_qualify(const char *text, const char *end, const char *const names[]);

/* The text after the first word, if it is this word in any case; else NULL. */
const char *pb_sql_after_word(const char *text, const char *word);

/* The text after leading parentheses, and their contents; NULL: it has none. */
const char *pb_sql_after_parentheses(const char *text, const char **ret_inside);

/* Whether the word occurs outside of quotes and comments. */
bool pb_sql_has_word(const char *text, const char *word);

/* Edit distance of two names, up to a limit; case-insensitive. */
int pb_name_distance(const char *a, const char *b);

/* Text in quotes as in SQL: quotes inside are doubled. */
void pb_put_quoted(FILE *out, const char *text, char quote);
