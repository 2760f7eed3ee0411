/* format: the text of one value, by its type. Used by values.c alone. */
#pragma once

#include "engine/shared/wire.h"

#include <duckdb.h>

/* As SQL spells it; "VARCHAR" for what can only be shown. */
const char *pb_format_type(duckdb_type id);

/* Cell `row` of an array of that type, which is not nested. */
enum pb_sql_kind pb_format_plain(struct pb_wire *m, duckdb_type id, const void *data, idx_t row);
enum pb_sql_kind pb_format_decimal(struct pb_wire *m, duckdb_type stored, unsigned scale, const void *data,
                                   idx_t row);

/* A JSON string. */
void pb_format_json(struct pb_wire *m, const char *text, size_t length);
