/* known: the tables that always exist, by name, with their columns.
 *
 * Live tables are read by the broker when a query needs them; recorded tables come from a run's arena and are
 * empty before anything is recorded. Broker and worker are of one release and share this list. */
#pragma once

#include "table/arena.h"

#include <stdbool.h>

struct pb_known {
    struct pb_table_spec spec;
    bool live;
};

/* Columns of python.backtrace, for the code that fills it. */
enum {
    PB_BT_THREAD,
    PB_BT_TID,
    PB_BT_DEPTH,
    PB_BT_FUNC,
    PB_BT_FILE,
    PB_BT_LINENO,
    PB_BT_IS_GIL,
    PB_BT_STATE,
    PB_BT_LOCALS
};

extern const struct pb_known pb_known[];
extern const unsigned pb_nknown;

/* The live table of that name, or NULL. */
const struct pb_known *pb_known_find(const char *name);

/* Whether `probing record` fills the table. */
bool pb_known_by_recorder(const char *schema, const char *name);

/* Names in the schema system, for pb_sql_qualify; ends with NULL. */
extern const char *const pb_system_tables[];
