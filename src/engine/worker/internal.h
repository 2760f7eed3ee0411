/* internal: what the files of the engine share; nobody else includes it. */
#pragma once

#include "base/err.h"
#include "engine/worker/duck.h"
#include "engine/worker/engine.h"
#include "engine/worker/scan.h"

#include <pthread.h>

/* A view that stands in the database for a table of the catalog. */
struct pb_engine_view {
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];
    uint64_t signature; /* of its columns; 0: it must be made again */
};

/* How the statement that runs reads its tables. */
enum pb_engine_run {
    PB_RUN_HELD,    /* its rows are held back at first: it may have to run again */
    PB_RUN_SETTLED, /* all that it may read has been copied: rows leave as they come */
    PB_RUN_WHOLE,   /* to its end, before the first row leaves */
    PB_RUN_UNSEEN,  /* its rows are thrown away: it runs for the error that it ends with */
};

/* Beside errno: the statement must be run again, settled. */
#define PB_RUN_MUST_SETTLE 1

struct pb_engine {
    duckdb_database db;
    duckdb_connection connection;
    duckdb_prepared_statement serialize; /* prepared once: it comes before every statement */
    struct pb_engine_view *views;
    unsigned nviews;
    pthread_mutex_t sending;           /* one message at a time, also from the thread that watches */
    struct pb_engine_request *request; /* the one that runs; changed with `sending` held */
    bool ordered;                      /* some statement of it depends on the order of rows */
    bool opaque;                       /* some statement of it has no tree: tables are read whole */
    bool several;                      /* it has more than one statement */
    bool single;                       /* it has one statement, which names at most one table, once */
    enum pb_engine_run run;
    unsigned reruns; /* of statements, because the writer was faster */
    struct pb_scan_request scans;
    unsigned threads;
    char *archive; /* the folder of the archive; NULL: none */
    struct pb_wire out;
    pthread_mutex_t stopping; /* guards busy and stopped; held while DuckDB is told to stop */
    bool busy;                /* a statement of the request runs, which may be stopped */
    bool stopped;             /* it was told to stop */
};

/* Whether the request that runs was told to stop: its time is up, or its caller gone. */
bool pb_engine_was_stopped(struct pb_engine *e);

/* Runs a statement of our own; its first cell where ret is not NULL, of malloc. -EIO with DuckDB's words. */
int pb_engine_do(struct pb_engine *e, const char *sql, struct pb_err *err);
int pb_engine_ask(struct pb_engine *e, const char *sql, const char *parameter, size_t length, char **ret,
                  struct pb_err *err);

/* Sends to the caller of the request that runs, and takes its answers, until the request's time is up:
 * -ETIMEDOUT. */
int pb_engine_send(struct pb_engine *e, struct pb_wire *m);
int pb_engine_receive(struct pb_engine *e, struct pb_wire *m);

/* The statement's syntax tree as JSON, of malloc. */
int pb_engine_tree(struct pb_engine *e, const char *sql, char **ret);

void pb_engine_note(struct pb_engine *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* views.c: brings the views to what the catalog says. With ENUMs where the snapshot has them. */
int pb_views_sync(struct pb_engine *e, struct pb_err *err);
int pb_views_use_archive(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
int pb_views_use_enums(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
int pb_views_comment(struct pb_engine *e, struct pb_err *err);

/* prepare.c: which tables a statement reads, their ranges, their snapshots. */
void pb_prepare_statement(struct pb_engine *e, const char *sql);
int pb_prepare_tables(struct pb_engine *e, struct pb_err *err);
int pb_prepare_again(struct pb_engine *e, enum pb_cat_copies copies, struct pb_err *err);
int pb_prepare_settled(struct pb_engine *e, struct pb_err *err);
bool pb_prepare_is_settled(const struct pb_engine *e);
int pb_prepare_table(void *engine, struct pb_cat_table *t, struct pb_err *err);

/* statement.c: runs one, sends its rows. */
int pb_statement_run(struct pb_engine *e, const char *sql, struct pb_err *err);
