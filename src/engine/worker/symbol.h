/* symbol: pb_symbol(TEXT) in SQL: the name of a function of C++ as people write it. */
#pragma once

#include <duckdb.h>

void pb_symbol_register(duckdb_connection connection);
