/* query_run: runs statements for a command and prints or writes what they give. Ctrl-C stops the query,
 * tidies up, and gives PB_STOPPED. A long one shows how far it is. */
#pragma once

#include "cli/cli.h"
#include "cli/print/query_print.h"

struct pb_query_options {
    enum pb_query_format format;
    struct pb_print_options print;
    bool stats;
    bool strict;        /* a source that could not be read is a failure */
    const char *output; /* NULL: stdout */
    unsigned timeout_ms, watch_ms;
};

/* The format for a file where no option names one: by the ending of its name, csv where that is unknown. */
enum pb_query_format pb_query_format_of(const char *path);

/* Over the targets of the call, to out. */
int pb_query_run(const struct pb_call *call, const struct pb_query_options *o, const char *sql, size_t length,
                 FILE *out, struct pb_err *err);

/* The same to o->output, which appears whole or not at all. */
int pb_query_run_to_file(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                         size_t length, struct pb_err *err);

/* The same again and again, in place, until q or Ctrl-C. */
int pb_query_watch(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                   size_t length, struct pb_err *err);
