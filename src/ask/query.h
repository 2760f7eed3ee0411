/* query: SQL over targets, as data: opened with a deadline and a way to cancel it, then read event by event.
 *
 * Rows come while the query runs, typed (engine/shared/cells.h), a batch at a time. A source that cannot be
 * read is an event, and the rows of the others still come. When the caller does not read, the query waits, at
 * the cost of one batch and a socket's buffer, until its deadline. For any thread, one at a time per
 * query. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "engine/caller/broker.h"

struct pb_query;

struct pb_query_request {
    const char *sql; /* must stay valid until the query is closed */
    size_t length;
    unsigned timeout_ms;     /* 0: none */
    struct pb_cancel cancel; /* the query fails with -ECANCELED then */
    bool progress;           /* send progress events */
};

/* Opens the tables of the targets, or without targets those in ask->archive, and sends the statements. ask
 * must stay valid until the query is closed. */
int pb_query_open(const struct pb_ask *ask, const struct pb_targets *targets,
                  const struct pb_query_request *request, struct pb_query **ret, struct pb_err *err);

/* As pb_sql_next: 1 an event, 0 the end. Sources that could not be opened come first, as PB_SQL_EVENT_FAILED
 * without a table. */
int pb_query_next(struct pb_query *q, struct pb_sql_event *ret, struct pb_err *err);

/* The source with the number in an event. */
const struct pb_sql_source *pb_query_source(const struct pb_query *q, unsigned number);
unsigned pb_query_nsources(const struct pb_query *q);

/* At the end of the query; failures includes sources that could not be opened. */
struct pb_sql_stats pb_query_stats(const struct pb_query *q);

/* May be called before the end. */
void pb_query_close(struct pb_query *q);
