/* engine: DuckDB as the worker uses it: opened once, locked down, then one request after the other.
 *
 * A request sees nothing of the previous one except views, which are updated: each runs in a read-only
 * transaction that is rolled back, and only statements that read are allowed. */
#pragma once

#include "engine/shared/wire.h"
#include "engine/worker/catalog.h"

#include <stdbool.h>

struct pb_engine;

struct pb_engine_request {
    const char *sql;
    uint32_t length;
    uint64_t received;   /* when, on the monotonic clock */
    unsigned timeout_ms; /* for messages */
    uint64_t deadline;   /* on the monotonic clock; 0: none */
    bool stopped;        /* set afterwards: it was interrupted */
    bool no_agent;       /* the process is not probed: its recorded tables are empty */
    bool progress;       /* the caller wants progress messages */
    bool plan;           /* give the plan for many nodes instead of running: plan.h */
    bool whole;          /* in which no aggregate is split */
    bool node_rows;      /* rows of many nodes follow, which it runs over: node_rows.h */
    uint64_t now_us;     /* what now() is then, in microseconds after 1970 */
    uint64_t cap;        /* rows of a table that a node sends at most */
    struct pb_wire *in;  /* over: the request, where its tables begin */
    struct pb_catalog catalog;
    int socket; /* for results, and for requests of live tables */
};

/* Opens the database inside the sandbox; threads: how many may work on one query; archive: the folder that
 * the sandbox allows to read, NULL: none. */
int pb_engine_open(unsigned threads, uint64_t memory, const char *archive, struct pb_engine **ret,
                   struct pb_err *err);

/* Runs all statements and sends their rows; a failure is sent as ERROR too. Negative: the caller is gone or
 * does not read; -EIO: the database is broken, and the worker must end. */
int pb_engine_run(struct pb_engine *e, struct pb_engine_request *request);

/* Sends the progress to the caller, from another thread; never blocks. */
void pb_engine_progress(struct pb_engine *e);

/* Interrupts the current statement, from another thread; may be called repeatedly. */
void pb_engine_interrupt(struct pb_engine *e);
