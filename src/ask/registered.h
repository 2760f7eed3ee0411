/* registered: tables of a process whose rows come from a function of its own at the moment of a query
 * (probing.register, python/probing/_live.py; probing_register, src/agent/live.c). */
#pragma once

#include "ask/sources.h"
#include "base/err.h"

/* A table that is missing because its function failed. */
struct pb_registered_failure {
    char table[128]; /* "": none is */
    struct pb_err err;
};

/* Asks each live source that has registered tables for those that the SQL may name, and adds what it gives to
 * what the source recorded. Where a function fails or takes too long its table is missing, and *ret says why:
 * for a query that turns out to want it. With several sources that is a note. Negative: the process does not
 * answer. */
int pb_registered_ask(const struct pb_ask *ask, struct pb_query_sources *sources, const char *sql,
                      size_t length, unsigned timeout_ms, struct pb_registered_failure *ret,
                      struct pb_err *err);
