/* broker_archive: tells a worker about the archive. Used by broker.c alone. */
#pragma once

#include "engine/archive/archive_list.h"
#include "engine/caller/broker.h"

/* Number of arenas of a query: first those of its sources, then recordings of them, source by source. */
unsigned pb_broker_arenas(const struct pb_sql_query *q);

/* Writes into a REQUEST: the archived tables of an arena, with their columns. */
void pb_broker_put_tables(const struct pb_sql_query *q, unsigned arena, struct pb_wire *to);

/* Answers WHICH: the files that may hold rows of a table between two times. lists: cache of the query. */
int pb_broker_put_files(const struct pb_sql_query *q, struct pb_archive_lists *lists, struct pb_wire *which,
                        struct pb_wire *to, struct pb_sql_stats *stats);
