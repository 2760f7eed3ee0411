/* derived: see derived.h.
 *
 * A row of python.torch_trace is 24 bytes: one text has its stage, module and whatever else is the same each
 * time, and the step is that of python.torch_step at its time. Steps follow each other without a gap, so a
 * row behind the newest of them is in the next one. */
#include "engine/worker/derived.h"

#include "engine/worker/catalog.h"

#include <stdio.h>
#include <string.h>

/* %1$s: the rows, %2$s: what tells processes apart. The last lines are the names of the tool that this one
 * takes over from; seconds, and what is not recorded is NULL. */
#define TORCH_TRACE                                                                                          \
    "WITH recorded AS (%1$s), fields AS (SELECT *, string_split(place::VARCHAR, chr(31)) AS f FROM "         \
    "recorded),"                                                                                             \
    " steps AS (SELECT * FROM memory.python.torch_step)"                                                     \
    " SELECT t.* EXCLUDE (f), t.f[1] AS stage, t.f[2] AS module, t.f[2] AS operation_name,"                  \
    " t.f[3] AS module_type, nullif(t.f[4], '') AS parent, t.f[5]::INTEGER AS depth,"                        \
    " t.f[6]::INTEGER AS thread_id, nullif(t.f[7], '') AS model, nullif(t.f[8], '') AS shapes,"              \
    " CASE WHEN t.timestamp < s.timestamp + to_microseconds((s.duration_ms * 1000)::BIGINT) THEN s.step"     \
    " ELSE s.step + 1 END AS step,"                                                                          \
    " t.took_ms::DOUBLE AS duration_ms, t.took_ms::DOUBLE * t.own_share / 65535 AS self_ms,"                 \
    " step AS micro_step, step AS local_step, step AS global_step, NULL::INTEGER AS micro_batches,"          \
    " NULL::BIGINT AS seq, t.took_ms::DOUBLE / 1000 AS duration,"                                            \
    " epoch(t.timestamp - s.timestamp)::DOUBLE AS time_offset,"                                              \
    " NULL::DOUBLE AS allocated, NULL::DOUBLE AS max_allocated, NULL::DOUBLE AS cached,"                     \
    " NULL::DOUBLE AS max_cached, NULL::DOUBLE AS allocated_delta, NULL::DOUBLE AS max_allocated_delta"      \
    " FROM fields t ASOF LEFT JOIN steps s ON %2$st.timestamp >= s.timestamp"

bool pb_derived_is(const struct pb_cat_table *t)
{
    return strcmp(t->schema, "python") == 0 && strcmp(t->name, "torch_trace") == 0;
}

char *pb_derived_select(const struct pb_cat_table *t, const char *rows, bool ranks)
{
    char *sql;
    (void)t;

    return asprintf(&sql, TORCH_TRACE, rows, ranks ? "t.target_pid = s.target_pid AND " : "") < 0 ? NULL
                                                                                                  : sql;
}
