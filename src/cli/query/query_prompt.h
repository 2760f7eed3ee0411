/* query_prompt: `query` without a query on a terminal: statements are asked for, run and shown, one after the
 * other. */
#pragma once

#include "cli/query/query_run.h"

/* Until Ctrl-D or .quit. What is wrong with a statement is shown and forgotten. */
int pb_query_prompt(const struct pb_call *call, const struct pb_query_options *o, struct pb_err *err);
