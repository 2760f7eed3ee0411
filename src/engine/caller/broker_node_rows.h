/* broker_node_rows: hands the rows that nodes sent to a worker: see node_rows.h in worker/. */
#pragma once

#include "engine/caller/broker.h"

/* The end of a REQUEST: which tables there are. */
void pb_broker_put_node_rows(const struct pb_sql_node_rows *nodes, struct pb_wire *m);

/* Their rows, in messages of their own. A worker that is gone is noticed by who reads its answer. */
int pb_broker_send_node_rows(int fd, const struct pb_sql_node_rows *nodes, struct pb_wire *m,
                             uint64_t deadline_ns);
