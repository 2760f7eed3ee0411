/* broker: the caller's side of a query: finds or starts a worker, hands it what it may read, takes the rows.
 *
 * A worker has no rights; everything it sees comes through here. It stays for a minute after a query, in the
 * user's runtime directory, so that the next one need not load DuckDB. Each worker serves one query at a
 * time; when all are busy more are started up to a bound, then queries wait in line. For tools; blocking. */
#pragma once

#include "engine/caller/live.h"
#include "engine/shared/wire.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_archive_run;

struct pb_sql_source {
    struct pb_live_source live;
    int32_t rank;                                    /* -1: none */
    const struct pb_archive_run *archived;           /* what the archive holds of its run; NULL: nothing */
    const struct pb_archive_run *more[PB_LIVE_MORE]; /* and of what others recorded of it: live.more */
};

struct pb_sql_query {
    const char *sql;
    size_t length;
    const struct pb_sql_source *sources;
    unsigned nsources;
    const char *archive; /* its folder, without links; NULL: nothing is archived */
    bool no_agent;       /* the processes are not probed, which explains empty tables */
    unsigned timeout_ms; /* 0: none */
    /* A signal handler sets it to stop the query: the worker is ended, -ECANCELED. NULL: never. */
    const volatile sig_atomic_t *cancel;
};

struct pb_sql_column {
    const char *name, *type; /* type: as SQL spells it */
};

struct pb_sql_cell {
    enum pb_sql_kind kind;
    const char *text; /* not terminated */
    uint32_t length;
};

/* Where results go. A negative return ends the query with it. All live as long as the call. */
struct pb_sql_sink {
    int (*columns)(void *arg, const struct pb_sql_column *columns, unsigned n); /* a result begins */
    int (*row)(void *arg, const struct pb_sql_cell *cells, unsigned n);
    void (*note)(void *arg, const char *text);
    void *arg;
    /* Several times a second while it runs; NULL: nobody cares. known grows as further tables are begun. */
    void (*progress)(void *arg, uint64_t scanned, uint64_t known);
};

struct pb_sql_stats {
    uint64_t segments_read, segments_skipped, rows_scanned;
    uint64_t files_read, files_skipped; /* of the archive */
    uint64_t failures;                  /* live tables of single sources that could not be read */
    uint64_t reruns;                    /* of a statement, because the writer overtook it */
    uint64_t elapsed_ns; /* in the worker, from the request to its end, live tables read by us included */
};

/* Runs the statements. err has a sentence on failure, -EINVAL: they are wrong; -EPERM: they do more than
 * read; -ETIMEDOUT; -ECANCELED. ret may be NULL. */
int pb_sql_run(const struct pb_sql_query *q, const struct pb_sql_sink *sink, struct pb_sql_stats *ret,
               struct pb_err *err);
