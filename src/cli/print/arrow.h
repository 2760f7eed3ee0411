/* arrow: a result as a stream of Apache Arrow (the IPC streaming format), written as it comes: the schema,
 * a record batch for each batch of the query, an end.
 *
 * A batch has nearly Arrow's layout already (engine/shared/cells.h), so its arrays are copied, not converted.
 * What Arrow has no type for is text, exact as in the other formats: lists, structs and maps (JSON), UUIDs,
 * times with an offset, unsigned integers of 128 bits. */
#pragma once

#include "engine/caller/broker.h"

#include <stdio.h>

struct pb_arrow;

/* NULL: out of memory. */
struct pb_arrow *pb_arrow_new(FILE *out);

/* -EEXIST: a stream holds one result, and this would be the second. */
int pb_arrow_columns(struct pb_arrow *a, const struct pb_sql_column *columns, unsigned n);

/* -ERANGE: an interval that Arrow, which counts nanoseconds, cannot hold. */
int pb_arrow_rows(struct pb_arrow *a, const struct pb_batch *batch);

/* Ends the stream; a stream without this end is incomplete. Without any result, writes a schema without
 * columns. */
int pb_arrow_end(struct pb_arrow *a);
void pb_arrow_free(struct pb_arrow *a);
