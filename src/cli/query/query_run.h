/* query_run: runs statements for a command and prints the rows or writes them to a file. Ctrl-C stops the
 * query, cleans up, and returns PB_STOPPED. A long query shows its progress. */
#pragma once

#include "cli/cli.h"
#include "cli/print/query_print.h"

struct pb_cluster;
struct pb_selection;

struct pb_query_options {
    enum pb_query_format format;
    struct pb_print_options print;
    bool stats;
    bool strict;        /* a source that could not be read is a failure */
    const char *output; /* NULL: stdout */
    unsigned timeout_ms, watch_ms;
    const struct pb_cluster *cluster; /* over its ranks, not over the targets of the call; NULL: none */
    const struct pb_selection *selection;
    struct pb_cluster *renew;
    unsigned deadline_ms; /* then: of its nodes; 0: as usual */
    uint64_t max_rows;    /* of a table, of each node; 0: as usual */
};

/* The query command over the ranks of a cluster. renew: as in cluster/query.h. */
int pb_query_over_cluster(const struct pb_call *call, const struct pb_cluster *c,
                          const struct pb_selection *selection, struct pb_cluster *renew, struct pb_err *err);

/* The format of a file by the ending of its name; csv where that is unknown. */
enum pb_query_format pb_query_format_of(const char *path);

/* Runs SQL over the targets of the call, and prints to out. */
int pb_query_run(const struct pb_call *call, const struct pb_query_options *o, const char *sql, size_t length,
                 FILE *out, struct pb_err *err);

/* The same to the file o->output, which is replaced whole or not at all. */
int pb_query_run_to_file(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                         size_t length, struct pb_err *err);

/* The same repeatedly, redrawn in place, until q or Ctrl-C. */
int pb_query_watch(const struct pb_call *call, const struct pb_query_options *o, const char *sql,
                   size_t length, struct pb_err *err);
