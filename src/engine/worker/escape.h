/* escape: see escape.c; in the test build of the worker only. */
#pragma once

#include <duckdb.h>

void pb_escape_register(duckdb_connection connection);
