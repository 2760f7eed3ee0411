/* engine: DuckDB as the worker uses it: opened once, locked down, then one request after the other.
 *
 * Between requests nothing of one is seen by the next but views that were brought up to date: each runs in a
 * read-only transaction that is rolled back, and only statements that read are let through. */
#pragma once

#include "engine/shared/wire.h"
#include "engine/worker/catalog.h"

#include <stdbool.h>

struct pb_engine;

struct pb_engine_request {
    const char *sql;
    uint32_t length;
    uint64_t received;   /* when, on the monotonic clock */
    unsigned timeout_ms; /* for the messages */
    uint64_t deadline;   /* on the monotonic clock; 0: none */
    bool stopped;        /* afterwards: it was ended in the middle */
    bool no_agent;       /* the process is not probed: its recorded tables are empty */
    bool progress;       /* the caller would like to hear how far it is */
    struct pb_catalog catalog;
    int socket; /* where results go, and what live tables are asked of */
};

/* Opens the database inside the sandbox; threads: how many may work on one query; archive: the folder that
 * the sandbox lets it read, NULL: none. */
int pb_engine_open(unsigned threads, uint64_t memory, const char *archive, struct pb_engine **ret,
                   struct pb_err *err);

/* Runs all statements and sends what they give; a failure is sent as ERROR too. Negative: the caller is gone
 * or does not take what is sent; -EIO: the database is no longer fit for use, and the worker must end. */
int pb_engine_run(struct pb_engine *e, struct pb_engine_request *request);

/* Tells the caller how far the query is, from another thread; never waits. */
void pb_engine_progress(struct pb_engine *e);

/* Stops what runs now, from another thread; may be called again and again. */
void pb_engine_interrupt(struct pb_engine *e);
