/* query_names: names that SQL about the targets can use (tables and columns as they are now, functions,
 * keywords), and which of them complete a half-written statement. */
#pragma once

#include "cli/cli.h"
#include "cli/line/line_edit.h"

#include <stdint.h>

struct pb_query_name {
    char kind;   /* 'c' a column, 'f' a function, 'k' a keyword */
    char *table; /* table of a column, with its schema unless that is main; else NULL */
    char *name;
};

struct pb_query_names {
    struct pb_query_name *at;
    size_t n, room;
    uint64_t read_at; /* monotonic ns; 0: never */
};

void pb_query_names_done(struct pb_query_names *names);

/* Reads the names, unless they are fresh. On failure the earlier names stay. */
int pb_query_names_read(struct pb_query_names *names, const struct pb_call *call, struct pb_err *err);

bool pb_query_names_has_table(const struct pb_query_names *names, const char *table);

/* Offers completions of the word before the cursor; returns where the word begins. */
size_t pb_query_names_complete(const struct pb_query_names *names, const char *text, size_t cursor,
                               struct pb_line_words *to);
