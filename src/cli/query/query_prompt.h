/* query_prompt: `query` without SQL on a terminal: reads statements, runs each and prints its rows. */
#pragma once

#include "cli/query/query_run.h"

/* Runs until Ctrl-D or .quit. An error of a statement is printed, and the prompt goes on. */
int pb_query_prompt(const struct pb_call *call, const struct pb_query_options *o, struct pb_err *err);
