/* query: SQL over targets, as data: opened with a deadline and a way to cancel it, then pulled event by
 * event.
 *
 * Rows come while the query runs, in their types (engine/shared/cells.h), a batch at a time. A source that
 * cannot be read is an event of its own, and the rows of the others come all the same. A caller that does not
 * pull holds the query up, at the cost of one batch and a socket's buffer, until the query's time is over;
 * nothing is held for a reader anywhere. For any thread, one at a time for each query. */
#pragma once

#include "ask/ask.h"
#include "ask/targets.h"
#include "engine/caller/broker.h"

struct pb_query;

struct pb_query_request {
    const char *sql; /* must live until the query is closed */
    size_t length;
    unsigned timeout_ms;     /* 0: none */
    struct pb_cancel cancel; /* -ECANCELED then */
    bool progress;           /* events that tell how far it is */
};

/* Opens what the targets have, or without targets what ask->archive holds, and sends the statements. ask must
 * live until the query is closed. */
int pb_query_open(const struct pb_ask *ask, const struct pb_targets *targets,
                  const struct pb_query_request *request, struct pb_query **ret, struct pb_err *err);

/* As pb_sql_next: 1 an event, 0 the end. A source that could not be opened comes first, as
 * PB_SQL_EVENT_FAILED without a table. */
int pb_query_next(struct pb_query *q, struct pb_sql_event *ret, struct pb_err *err);

/* POLLIN: pb_query_next will not wait long. */
int pb_query_fd(const struct pb_query *q);

/* A source by the number that an event has. */
const struct pb_sql_source *pb_query_source(const struct pb_query *q, unsigned number);
unsigned pb_query_nsources(const struct pb_query *q);

/* When it is over; failures counts sources that could not be opened too. */
struct pb_sql_stats pb_query_stats(const struct pb_query *q);

/* Also in the middle. */
void pb_query_close(struct pb_query *q);
