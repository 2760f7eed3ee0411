/* parse: from argv to a struct pb_call. */
#pragma once

#include "cli/cli.h"

/* Returns 0; PB_USAGE with a sentence; 1: help was asked for and printed; 2: the version was asked for. */
int pb_parse(int argc, char **argv, struct pb_call *ret, struct pb_err *err);
