/* cluster_query: SQL over all ranks of a cluster: planned here, answered by every node, finished here.
 *
 * Opening a query plans the statements, collects the nodes' rows until the deadline and passes them to a
 * worker here. Then the caller pulls events as from any query. rank, node and role lead every table;
 * cluster.nodes, cluster.ranks and cluster.clocks are tables of the asking side. A malformed answer fails its
 * own node only. */
#pragma once

#include "cluster/link/ask_nodes.h"
#include "engine/caller/broker.h"

struct pb_cluster_query;

struct pb_cluster_query_request {
    const struct pb_selection *selection;
    const char *sql; /* must live until the query is closed */
    size_t length;
    unsigned deadline_ms; /* of the nodes; 0: 5 s */
    unsigned timeout_ms;  /* of the statements over what came; 0: none */
    uint64_t cap;         /* rows of a table that a node sends; 0: a million */
    struct pb_cancel cancel;
    struct pb_cluster
        *renew; /* c itself, to measure old clocks again for cluster.clocks; NULL: as they are */
};

/* c must live until the query is closed. */
int pb_cluster_query_open(const struct pb_cluster *c, const struct pb_cluster_query_request *request,
                          struct pb_cluster_query **ret, struct pb_err *err);

/* As pb_sql_next: notes of the nodes come first. */
int pb_cluster_query_next(struct pb_cluster_query *q, struct pb_sql_event *ret, struct pb_err *err);

/* What each node did. */
const struct pb_cluster_result *pb_cluster_query_result(const struct pb_cluster_query *q);

struct pb_cluster_query_stats {
    uint64_t rows, bytes; /* that the nodes sent */
    bool split;           /* groups travelled instead of rows */
    unsigned rounds;      /* questions that were asked of the nodes */
};
struct pb_cluster_query_stats pb_cluster_query_stats_of(const struct pb_cluster_query *q);

void pb_cluster_query_close(struct pb_cluster_query *q);
