/* known: the tables that always exist, by name, with their columns.
 *
 * Live tables are read by the broker when a query needs them; recorded tables come from a run's arena and are
 * empty before anything is recorded. Broker and worker are of one release and share this list. */
#pragma once

#include "control/tables.def"
#include "table/arena.h"

#include <stdbool.h>

struct pb_known {
    struct pb_table_spec spec;
    bool live;             /* the tool or the agent makes it when a query names it */
    bool asked;            /* the agent: reading it asks the process */
    const char *filled_by; /* the command that records it; NULL: none */
};

/* The numbers of columns, for the code that fills these tables. */
#define PB_BT_ID(id, ...)     PB_BT_##id,
#define PB_MEMORY_ID(id, ...) PB_MEMORY_##id,
enum { PB_TABLE_BACKTRACE(PB_NOTHING, PB_BT_ID) };
enum { PB_TABLE_MEMORY_NOW(PB_NOTHING, PB_MEMORY_ID) };

extern const struct pb_known pb_known[];
extern const unsigned pb_nknown;

/* The live table of that name, or NULL. */
const struct pb_known *pb_known_find(const char *name);

/* The command that records the table; NULL: there is none, or the table is not known. */
const char *pb_known_filled_by(const char *schema, const char *name);

/* Names in the schema system, for pb_sql_qualify; ends with NULL. */
extern const char *const pb_system_tables[];
