/* broker_archive: what a worker is told of the archive. Used by broker.c alone. */
#pragma once

#include "engine/broker.h"

/* Into a REQUEST: the tables that the archive holds of a source, with their columns. */
void pb_broker_put_tables(const struct pb_sql_query *q, const struct pb_sql_source *s, struct pb_wire *to);

/* Answers WHICH: the files that may hold rows of a table between two times. */
int pb_broker_put_files(const struct pb_sql_query *q, struct pb_wire *which, struct pb_wire *to,
                        struct pb_sql_stats *stats);
