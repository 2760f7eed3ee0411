/* query: see query.h. */
#include "ask/query.h"

#include "ask/sources.h"
#include "base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pb_query {
    struct pb_query_sources sources;
    struct pb_sql *sql;
    unsigned checked; /* number of sources already checked for open failures */
};

static int open_sources(const struct pb_ask *ask, const struct pb_targets *targets,
                        struct pb_query_sources *ret, struct pb_err *err)
{
    bool only_archive = targets->n == 0 && ask->archive && strcmp(ask->archive, "none") != 0;

    return only_archive ? pb_sources_open_archive(ask, ret, err) : pb_sources_open(ask, targets, ret, err);
}

int pb_query_open(const struct pb_ask *ask, const struct pb_targets *targets,
                  const struct pb_query_request *request, struct pb_query **ret, struct pb_err *err)
{
    struct pb_query *q = calloc(1, sizeof(*q));

    if (!q)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = open_sources(ask, targets, &q->sources, err);
    if (r < 0) {
        free(q);
        return r;
    }
    const struct pb_sql_query query = {.sql = request->sql,
                                       .length = request->length,
                                       .sources = q->sources.at,
                                       .nsources = q->sources.n,
                                       .archive = q->sources.archive,
                                       .no_agent = q->sources.no_agent,
                                       .timeout_ms = request->timeout_ms,
                                       .progress = request->progress,
                                       .cancel = request->cancel};
    r = pb_sql_open(&query, &q->sql, err);
    if (r < 0)
        pb_query_close(q);
    else
        *ret = q;
    return r;
}

int pb_query_next(struct pb_query *q, struct pb_sql_event *ret, struct pb_err *err)
{
    while (q->checked < q->sources.n) {
        unsigned i = q->checked++;
        const char *why = q->sources.at[i].live.broken;
        if (why) {
            *ret = (struct pb_sql_event){.kind = PB_SQL_EVENT_FAILED, .source = i, .text = why};
            return 1;
        }
    }
    return pb_sql_next(q->sql, ret, err);
}

const struct pb_sql_source *pb_query_source(const struct pb_query *q, unsigned number)
{
    return &q->sources.at[number];
}

unsigned pb_query_nsources(const struct pb_query *q)
{
    return q->sources.n;
}

struct pb_sql_stats pb_query_stats(const struct pb_query *q)
{
    struct pb_sql_stats stats = *pb_sql_stats_of(q->sql);

    stats.failures += q->sources.failed;
    return stats;
}

void pb_query_close(struct pb_query *q)
{
    if (!q)
        return;
    pb_sql_close(q->sql);
    pb_query_sources_done(&q->sources);
    free(q);
}
