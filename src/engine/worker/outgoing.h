/* outgoing: the rows of a statement on their way to the caller, while the statement runs. Worker only.
 *
 * The first rows are held back for a moment: as long as nobody has seen them, a statement whose tables were
 * overwritten meanwhile can run again. When the statement is through, they leave; when it goes on for longer
 * or gives many, they leave as soon as nothing can go wrong with its tables any more. */
#pragma once

#include "engine/worker/internal.h"

/* Sends columns and rows of a result to its end. PB_RUN_MUST_SETTLE: rows are due, and a table of the
 * statement may still be overwritten. */
int pb_outgoing_send(struct pb_engine *e, duckdb_result *result, struct pb_err *err);
