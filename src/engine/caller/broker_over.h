/* broker_over: hands the rows that nodes sent to a worker: see over.h in worker/. */
#pragma once

#include "engine/caller/broker.h"

/* The end of a REQUEST: which tables there are. */
void pb_broker_put_over(const struct pb_sql_over *over, struct pb_wire *m);

/* Their rows, in messages of their own. A worker that is gone is noticed by who reads its answer. */
int pb_broker_send_over(int fd, const struct pb_sql_over *over, struct pb_wire *m, uint64_t deadline_ns);
