/* broker: the caller's side of a query: finds or starts a worker, passes it the arenas it may read, receives
 * the rows.
 *
 * A worker has no rights; everything it sees comes through the broker. It stays for a minute after a query,
 * reachable in the user's runtime directory, so that the next query need not load DuckDB. Each worker serves
 * one query at a time; when all are busy more are started up to a limit, then queries wait in line.
 *
 * A query is opened, read event by event, and closed. Rows come while it runs. A caller that does not read
 * delays the query and costs only what is in the socket; at the query's deadline its worker serves others.
 * One thread at a time uses a query; different queries share nothing. */
#pragma once

#include "engine/caller/cancel.h"
#include "engine/caller/live.h"
#include "engine/shared/cells.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_archive_run;

/* How many queries of this user run at once: workers, two a CPU. */
unsigned pb_sql_workers(void);

struct pb_sql_source {
    struct pb_live_source live;
    int32_t rank;                                    /* -1: none */
    const struct pb_archive_run *archived;           /* archived rows of its run; NULL: none */
    const struct pb_archive_run *more[PB_LIVE_MORE]; /* archived rows of recordings of it: live.more */
};

/* What one node sent of one table: COLUMNS and BATCH frames (sent.h). */
struct pb_sql_sent {
    unsigned table;
    const char *node;
    const struct pb_sql_rank {
        int32_t rank;
        const char *role; /* NULL: it has none */
    } * ranks;
    unsigned nranks;
    const uint8_t *frames;
    size_t size;
};

/* A query over rows that nodes sent, instead of sources. */
struct pb_sql_node_rows {
    const struct pb_sql_table {
        const char *schema, *name; /* schema "": main */
        const char *select;        /* of the asking side's own tables: where its rows come from */
    } * tables, *own;
    unsigned ntables, nown;
    const struct pb_sql_sent *sent;
    unsigned nsent;
};

struct pb_sql_query {
    const char *sql;
    size_t length;
    const struct pb_sql_source *sources;
    unsigned nsources;
    const char *archive; /* folder of the archive, links resolved; NULL: nothing is archived */
    bool no_agent;       /* no process is probed, which explains empty tables */
    unsigned timeout_ms; /* 0: none */
    bool progress;       /* send progress events, several times a second */
    bool plan;           /* the result is the plan of the statements over many nodes: see plan.h */
    bool whole;          /* in which no aggregate is split */
    uint64_t cap;        /* and a node sends no more rows of a table than that */
    const struct pb_sql_node_rows *node_rows; /* NULL: over the sources */
    uint64_t now_us;         /* of a plan and a query over such: what now() is, microseconds after 1970 */
    struct pb_cancel cancel; /* stops the query: -ECANCELED */
};

struct pb_sql_column {
    const char *name, *type; /* type: in SQL */
    enum pb_cell_type cells; /* type of the cells in a batch */
    unsigned scale;          /* of decimals */
};

enum pb_sql_event_kind {
    PB_SQL_EVENT_COLUMNS,  /* a result begins: columns, n */
    PB_SQL_EVENT_BATCH,    /* rows of it: batch */
    PB_SQL_EVENT_NOTE,     /* text: a sentence for a person */
    PB_SQL_EVENT_FAILED,   /* one of several sources is missing in a table: source, table, text */
    PB_SQL_EVENT_PROGRESS, /* rows scanned, and rows known; known grows as the scan reaches further tables */
};

/* Its pointers are valid until the next call. */
struct pb_sql_event {
    enum pb_sql_event_kind kind;
    const struct pb_sql_column *columns;
    unsigned n;
    struct pb_batch batch;
    unsigned source; /* its number in the query */
    const char *table, *text;
    uint64_t scanned, known;
};

struct pb_sql_stats {
    uint64_t segments_read, segments_skipped, rows_scanned;
    uint64_t files_read, files_skipped; /* of the archive */
    uint64_t failures;                  /* live tables of single sources that could not be read */
    uint64_t reruns;                    /* of a statement, because its rows were overwritten meanwhile */
    uint64_t elapsed_ns;                /* in the worker, including live tables that the broker reads */
};

struct pb_sql;

/* Finds a worker and sends it the query; waits in line when all are busy. The pointers in q must stay valid
 * until the query is closed. -E2BIG: the statements are too long; -ETIMEDOUT; -ECANCELED. */
int pb_sql_open(const struct pb_sql_query *q, struct pb_sql **ret, struct pb_err *err);

/* Waits for the next event: 1; 0: the query has ended. err has a sentence on failure, -EINVAL: the statements
 * are wrong; -ENOENT: a table does not exist; -EPERM: they do more than read; -ETIMEDOUT; -ECANCELED. Rows
 * before a failure are valid. */
int pb_sql_next(struct pb_sql *t, struct pb_sql_event *ret, struct pb_err *err);

/* Complete when the query has ended. */
const struct pb_sql_stats *pb_sql_stats_of(const struct pb_sql *t);

/* May be called before the end: the worker stops the query and serves others. */
void pb_sql_close(struct pb_sql *t);
