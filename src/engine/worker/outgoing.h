/* outgoing: sends the rows of a statement to the caller while the statement runs. Worker only.
 *
 * The first rows are held back briefly: until they are sent, a statement whose tables were overwritten can
 * run again. They are sent when the statement ends; if it runs longer or gives many rows, as soon as its
 * tables cannot be overwritten any more. */
#pragma once

#include "engine/worker/engine_impl.h"

/* Sends columns and rows of a result to its end. PB_RUN_MUST_SETTLE: rows must be sent now, but a table of
 * the statement may still be overwritten. */
int pb_outgoing_send(struct pb_engine *e, duckdb_result *result, struct pb_err *err);
