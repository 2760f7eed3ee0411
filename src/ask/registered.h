/* registered: tables of a process whose rows come from a function of its own at the moment of a query
 * (probing.register, python/probing/_live.py). */
#pragma once

#include "ask/sources.h"

/* Asks each live source that has registered tables for those that the SQL may name, and adds what it gives to
 * what the source recorded. A function that fails or takes too long is an error that names it; with several
 * sources a note, and the table of that source is missing. */
int pb_registered_ask(const struct pb_ask *ask, struct pb_query_sources *sources, const char *sql,
                      size_t length, unsigned timeout_ms, struct pb_err *err);
