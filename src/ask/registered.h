/* registered: tables of a process whose rows come from one of its functions at the time of a query
 * (probing.register, python/probing/_live.py; probing_register, src/agent/live.c). */
#pragma once

#include "ask/sources.h"
#include "base/err.h"

/* A table that is missing because its function failed. */
struct pb_registered_failure {
    char table[128]; /* "": none */
    struct pb_err err;
};

/* Asks each live source for its registered tables that the SQL may name, and adds their rows to the recorded
 * ones. Where a function fails or times out its table is missing, and *ret says why, in case the query needs
 * it. With several sources that becomes a note. Negative: the process does not answer. */
int pb_registered_ask(const struct pb_ask *ask, struct pb_query_sources *sources, const char *sql,
                      size_t length, unsigned timeout_ms, struct pb_registered_failure *ret,
                      struct pb_err *err);
