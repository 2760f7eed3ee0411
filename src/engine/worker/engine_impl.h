/* engine_impl: shared by the files of the engine only. */
#pragma once

#include "base/err.h"
#include "engine/worker/duck.h"
#include "engine/worker/engine.h"
#include "engine/worker/scan.h"

#include <pthread.h>

/* The view of a catalog table in the database. */
struct pb_engine_view {
    char schema[PB_CAT_NAME], name[PB_CAT_NAME];
    uint64_t signature; /* of its columns; 0: must be recreated */
};

/* How the current statement reads its tables. */
enum pb_engine_run {
    PB_RUN_HELD,    /* rows are held back at first: it may have to run again */
    PB_RUN_SETTLED, /* everything it may read has been copied: rows are sent at once */
    PB_RUN_WHOLE,   /* it runs to its end before the first row is sent */
    PB_RUN_UNSEEN,  /* its rows are dropped: it runs only for its error */
};

enum { PB_MOST_MISSING = 64 };

/* Beside errno: run the statement again, as PB_RUN_SETTLED. */
#define PB_RUN_MUST_SETTLE 1

struct pb_engine {
    duckdb_database db;
    duckdb_connection connection;
    duckdb_prepared_statement serialize; /* prepared once, since it is used for every statement */
    struct pb_engine_view *views;
    unsigned nviews;
    pthread_mutex_t sending;           /* one message at a time, also from the watching thread */
    struct pb_engine_request *request; /* the current one; changed with `sending` held */
    bool ordered;                      /* some statement depends on the order of rows */
    bool opaque;                       /* some statement has no tree: tables are read whole */
    bool several;                      /* there is more than one statement */
    bool single;                       /* there is one statement, which names at most one table, once */
    bool hidden;                       /* some statement may read tables that its tree does not name */
    char missing[PB_MOST_MISSING][2 * PB_CAT_NAME]; /* tables that statements name and the catalog lacks */
    unsigned nmissing;
    enum pb_engine_run run;
    unsigned reruns; /* of statements, because rows were overwritten */
    struct pb_scan_request scans;
    unsigned threads;
    char *archive; /* the folder of the archive; NULL: none */
    struct pb_wire out;
    char *functions;  /* of single values, that always give the same: a name a line; see plan.c */
    char *node_views; /* statements that drop what node_rows.c has made and no catalog knows; NULL: none */
    pthread_mutex_t stopping; /* guards busy and stopped; held while DuckDB is interrupted */
    bool busy;                /* a statement of the request runs, which may be interrupted */
    bool stopped;             /* it was interrupted */
};

/* Whether the current request was interrupted: it timed out, or its caller is gone. */
bool pb_engine_was_stopped(struct pb_engine *e);

/* Runs a statement of our own; ret: its first cell, from malloc, unless NULL. -EIO with DuckDB's message. */
int pb_engine_do(struct pb_engine *e, const char *sql, struct pb_err *err);
int pb_engine_ask(struct pb_engine *e, const char *sql, const char *parameter, size_t length, char **ret,
                  struct pb_err *err);

/* Sends to the caller of the current request, and receives its answers, until the request's deadline:
 * -ETIMEDOUT. */
int pb_engine_send(struct pb_engine *e, struct pb_wire *m);
int pb_engine_receive(struct pb_engine *e, struct pb_wire *m);

/* The statement's syntax tree as JSON, from malloc. */
int pb_engine_tree(struct pb_engine *e, const char *sql, char **ret);

/* The statement "SELECT expression", of malloc, from the expression's syntax tree. */
int pb_engine_print(struct pb_engine *e, const char *expression, size_t length, char **ret);

void pb_engine_note(struct pb_engine *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* views.c: updates the views to the catalog, with ENUMs where the snapshot has them. */
int pb_views_sync(struct pb_engine *e, struct pb_err *err);
int pb_views_use_archive(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
int pb_views_use_enums(struct pb_engine *e, struct pb_cat_table *t, struct pb_err *err);
int pb_views_comment(struct pb_engine *e, struct pb_err *err);

/* Whether the catalog has a view of that name, which is made again by the next request. */
bool pb_views_forget(struct pb_engine *e, const char *schema, const char *name);

/* prepare.c: finds the tables that a statement reads, their time ranges, and takes their snapshots. */
void pb_prepare_statement(struct pb_engine *e, const char *sql);
int pb_prepare_tables(struct pb_engine *e, struct pb_err *err);
int pb_prepare_again(struct pb_engine *e, enum pb_cat_copies copies, struct pb_err *err);
int pb_prepare_settled(struct pb_engine *e, struct pb_err *err);
bool pb_prepare_is_settled(const struct pb_engine *e);
/* After the statements: one note that says why a table they name is empty. */
void pb_prepare_note_empty(struct pb_engine *e);
int pb_prepare_table(void *engine, struct pb_cat_table *t, struct pb_err *err);

/* statement.c: runs a statement and sends its rows. */
int pb_statement_run(struct pb_engine *e, const char *sql, struct pb_err *err);

/* The statement that an EXPLAIN explains; NULL: it is no EXPLAIN. */
const char *pb_statement_explained(const char *sql);
