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
    const char *filled_by; /* the command that records it; NULL: none */
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

/* Columns of python.memory_now, likewise. */
enum {
    PB_MEMORY_TIME,
    PB_MEMORY_PID,
    PB_MEMORY_RSS,
    PB_MEMORY_BLOCKS,
    PB_MEMORY_ARENAS,
    PB_MEMORY_HEAP,
    PB_MEMORY_GC, /* three generations */
    PB_MEMORY_TORCH_CPU = PB_MEMORY_GC + 3,
    PB_MEMORY_TORCH_CUDA,
    PB_MEMORY_GPU
};

extern const struct pb_known pb_known[];
extern const unsigned pb_nknown;

/* The live table of that name, or NULL. */
const struct pb_known *pb_known_find(const char *name);

/* The command that records the table; NULL: there is none, or the table is not known. */
const char *pb_known_filled_by(const char *schema, const char *name);

/* Names in the schema system, for pb_sql_qualify; ends with NULL. */
extern const char *const pb_system_tables[];
