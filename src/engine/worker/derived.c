/* derived: see derived.h.
 *
 * A row of python.torch_trace is 24 bytes: one text has its stage, module and everything else that repeats,
 * and the step is that of python.torch_step at its time. Steps follow each other without gaps, so a row after
 * the newest step belongs to the next one. Rows for which memory was read too are in python.torch_memory.
 * Each step is a row of its own there (stage step), and has the epoch that the program logged with it. */
#include "engine/worker/derived.h"

#include "engine/worker/catalog.h"

#include <stdio.h>
#include <string.h>

/* %1$s: the rows, %2$s: the columns that identify a process. The last lines are the names of the
 * predecessor, in seconds and MB; columns that are not recorded are NULL. What is recorded packed comes
 * last. */
#define TORCH_TRACE                                                                                          \
    "WITH recorded AS ((%1$s) UNION ALL BY NAME (SELECT * FROM memory.python.torch_memory)),"                \
    " fields AS (SELECT *, string_split(place::VARCHAR, chr(31)) AS f FROM recorded),"                       \
    " logged AS (SELECT * FROM memory.main.training_logs WHERE epoch IS NOT NULL),"                          \
    " steps AS (SELECT t.*, s.epoch FROM memory.python.torch_step t"                                         \
    " ASOF LEFT JOIN logged s ON %2$st.timestamp + to_microseconds((t.duration_ms * 1000)::BIGINT)"          \
    " <= s.timestamp)"                                                                                       \
    " SELECT t.* EXCLUDE (f, place, took_ms, own_share, allocated_mb, allocated_delta_mb, cached_mb,"        \
    " max_allocated_mb, max_allocated_delta_mb, max_cached_mb),"                                             \
    " t.f[1] AS stage, t.f[2] AS module, t.f[2] AS operation_name,"                                          \
    " t.f[3] AS module_type, nullif(t.f[4], '') AS parent, t.f[5]::INTEGER AS depth,"                        \
    " t.f[6]::INTEGER AS thread_id, nullif(t.f[7], '') AS model, nullif(t.f[8], '') AS shapes,"              \
    " CASE WHEN t.timestamp < s.timestamp + to_microseconds((s.duration_ms * 1000)::BIGINT) THEN s.step"     \
    " ELSE s.step + CASE WHEN s.kind = 'eval' THEN 0 ELSE 1 END END AS step, s.epoch AS epoch,"              \
    " round(t.took_ms::DOUBLE, 6) AS duration_ms,"                                                           \
    " round(t.took_ms::DOUBLE * t.own_share / 65535, 6) AS self_ms,"                                         \
    " step AS micro_step, step AS local_step, step AS global_step, s.micro_batches AS micro_batches,"        \
    " NULL::BIGINT AS seq, t.took_ms::DOUBLE / 1000 AS duration,"                                            \
    " epoch(t.timestamp - s.timestamp)::DOUBLE AS time_offset,"                                              \
    " t.allocated_mb::DOUBLE AS allocated, t.max_allocated_mb::DOUBLE AS max_allocated,"                     \
    " t.cached_mb::DOUBLE AS cached, t.max_cached_mb::DOUBLE AS max_cached,"                                 \
    " t.allocated_delta_mb::DOUBLE AS allocated_delta,"                                                      \
    " t.max_allocated_delta_mb::DOUBLE AS max_allocated_delta, t.place, t.took_ms, t.own_share"              \
    " FROM fields t ASOF LEFT JOIN steps s ON %2$st.timestamp >= s.timestamp"                                \
    " UNION ALL BY NAME SELECT * EXCLUDE (data_ms, forward_ms, backward_ms, optimizer_ms, module_calls,"     \
    " sampled, samples, tokens, memory_mb, skipped, kind, before_ms, recompute_ms, in_flight, loss,"         \
    " batch_finite, loss_cause, loss_place, seen), 'step' AS stage, 'step' AS operation_name, 0 AS depth,"   \
    " duration_ms - data_ms - forward_ms - backward_ms - optimizer_ms AS self_ms, memory_mb AS host_mb,"     \
    " step AS micro_step, step AS local_step, step AS global_step, duration_ms / 1000 AS duration,"          \
    " 0::DOUBLE AS time_offset FROM steps WHERE kind IS DISTINCT FROM 'eval'"

/* Collectives under the predecessor's names; %2$s is not used. */
#define COMM_COLLECTIVE                                                                                      \
    "SELECT *, CASE WHEN done IS NOT NULL THEN 'completed' WHEN end_unknown THEN NULL"                       \
    " WHEN started IS NOT NULL THEN 'started' ELSE 'scheduled' END AS state,"                                \
    " op AS operation, tensor_dtype AS dtype, step AS local_step, step AS global_step,"                      \
    " step AS micro_step, NULL::INTEGER AS micro_batches FROM (%1$s)%2$s"

#define TRACE_EVENT                                                                                          \
    "SELECT *, epoch_ns(timestamp) AS time, CASE WHEN record_type = 'event' THEN attributes END AS "         \
    "event_attributes FROM (%1$s)%2$s"

#define BACKTRACE "SELECT *, NULL::BIGINT AS ip, 'Python' AS frame_type FROM (%1$s)%2$s"

/* Rows that a program recorded itself, and collectives. Between which ranks the data of a collective
 * moves is not known: source is the root or this rank, destination the root or -1, all ranks of the
 * group.
 *
 * All ranks of a collective end together, and the last to come waits for nobody: where all of them are
 * known, by group and number, its time is that on the wire, and what another rank took longer it waited.
 * Bandwidths are those of NCCL's own tests: of the data of all ranks, and of the busiest link. */
#define COMM_METRICS                                                                                         \
    "%1$s UNION ALL BY NAME SELECT timestamp, op AS operation, coalesce(src_rank, global_rank) AS src_rank," \
    " coalesce(dst_rank, -1) AS dst_rank, bytes, ms AS latency_ms, CASE WHEN whole THEN duration_ms - ms "   \
    "END AS wait_ms,"                                                                                        \
    " size / nullif(ms, 0) / 1e6 AS algbw_gbps, size / nullif(ms, 0) / 1e6 * CASE WHEN op LIKE "             \
    "'allreduce%%' THEN 2.0 * "                                                                              \
    "(group_size - 1) / group_size"                                                                          \
    " WHEN op LIKE 'allgather%%' OR op LIKE 'reduce_scatter%%' OR op LIKE 'alltoall%%' THEN (group_size - "  \
    "1.0) / group_size"                                                                                      \
    " ELSE 1 END AS busbw_gbps%2$s FROM (SELECT *, CASE WHEN whole THEN min(duration_ms) OVER same ELSE "    \
    "duration_ms END AS ms"                                                                                  \
    " FROM (SELECT *, CASE WHEN op LIKE 'allgather%%' THEN bytes * group_size ELSE bytes END::DOUBLE AS "    \
    "size,"                                                                                                  \
    " collective_seq IS NOT NULL AND op NOT IN ('send', 'recv') AND count(duration_ms) OVER same = "         \
    "group_size AS whole"                                                                                    \
    " FROM memory.python.comm_collective WINDOW same AS (PARTITION BY group_name, participate_ranks, op, "   \
    "collective_seq))"                                                                                       \
    " WINDOW same AS (PARTITION BY group_name, participate_ranks, op, collective_seq))"

/* Rows of `record`, and one of this moment. */
#define MEMORY "%1$s UNION ALL BY NAME SELECT *%2$s FROM memory.python.memory_now"

/* allocated_bytes answers "who holds the memory": a block that was freed, or of which it is not known,
 * holds none. What was allocated in all, freed or not, is gross_bytes. */
#define MEMORY_ALLOCATIONS                                                                                   \
    "SELECT * REPLACE (CASE WHEN freed IS NULL AND followed IS NOT FALSE THEN allocated_bytes ELSE 0 END"    \
    " AS allocated_bytes), allocated_bytes AS gross_bytes FROM (%1$s)%2$s"

/* Steps under the predecessor's names. In one of 32 steps it records no modules, for comparison: a shadow
 * step. */
#define TORCH_STEP_TIMING                                                                                    \
    "SELECT timestamp, step AS micro_step, step AS local_step, step AS global_step,"                         \
    " micro_batches::INTEGER AS micro_batches, duration_ms / 1000 AS step_duration_sec,"                     \
    " NOT sampled AS is_shadow, sampled%2$s FROM memory.python.torch_step WHERE kind IS DISTINCT FROM "      \
    "'eval'"                                                                                                 \
    " UNION ALL BY NAME (%1$s)"

/* Watched and tracked variables under the predecessor's names. A tracked value belongs to the step that just
 * ended, a watched one to the current step. */
#define VARIABLES                                                                                            \
    "WITH recorded AS (%1$s), steps AS (SELECT *, timestamp + to_microseconds((duration_ms * 1000)::BIGINT)" \
    " AS ended FROM memory.python.torch_step WHERE kind IS DISTINCT FROM 'eval')"                            \
    " SELECT t.*, t.function AS func, t.new AS value,"                                                       \
    " CASE WHEN t.how = 'tracked' THEN s.step ELSE s.step + 1 END AS micro_step FROM recorded t"             \
    " ASOF LEFT JOIN steps s ON %2$st.timestamp >= s.ended"
#define TRACE_VARIABLES                                                                                      \
    "SELECT timestamp, function AS function_name, file AS filename, line AS lineno, name AS variable_name,"  \
    " new AS value, CASE WHEN new_number IS NULL THEN 'str' ELSE 'float' END AS value_type%2$s"              \
    " FROM memory.python.variables UNION ALL BY NAME (%1$s)"

/* All rows with a duration. */
#define PROFILING_DATA                                                                                       \
    "SELECT timestamp, CASE WHEN stage = 'forward' OR depth > 0 THEN 'module' ELSE 'phase' END AS kind, "    \
    "operation_name,"                                                                                        \
    " stage, duration_ms, self_ms, step, thread_id, NULL::VARCHAR AS location%2$s"                           \
    " FROM memory.python.torch_trace WHERE stage <> 'step' UNION ALL BY NAME"                                \
    " SELECT timestamp, record_type::VARCHAR AS kind, name::VARCHAR AS operation_name,"                      \
    " phase::VARCHAR AS stage, duration_ms, step, thread_id, location::VARCHAR AS location%2$s"              \
    " FROM memory.python.trace_event WHERE duration_ms IS NOT NULL UNION ALL BY NAME"                        \
    " SELECT timestamp, 'collective' AS kind, op::VARCHAR AS operation_name, 'communication' AS stage,"      \
    " duration_ms, step, thread_id, location::VARCHAR AS location%2$s"                                       \
    " FROM memory.python.comm_collective WHERE duration_ms IS NOT NULL UNION ALL BY NAME (%1$s)"

/* Names of kernels as people write them. */
#define GPU_KERNELS "SELECT * REPLACE (pb_symbol(name::VARCHAR) AS name) FROM (%1$s)%2$s"

static const struct {
    const char *schema, *name, *sql, *by_rank;
} derived[] = {
    {"python", "torch_trace", TORCH_TRACE, "t.target_pid = s.target_pid AND "},
    {"python", "torch_step_timing", TORCH_STEP_TIMING, ", rank, target_pid"},
    {"python", "variables", VARIABLES, "t.target_pid = s.target_pid AND "},
    {"python", "trace_variables", TRACE_VARIABLES, ", rank, target_pid"},
    {"python", "comm_collective", COMM_COLLECTIVE, ""},
    {"python", "trace_event", TRACE_EVENT, ""},
    {"python", "backtrace", BACKTRACE, ""},
    {"main", "comm_metrics", COMM_METRICS, ", rank, target_pid"},
    {"main", "memory_allocations", MEMORY_ALLOCATIONS, ""},
    {"python", "memory", MEMORY, ""},
    {"main", "profiling_data", PROFILING_DATA, ", rank, target_pid"},
    {"gpu", "kernels", GPU_KERNELS, ""},
};
#define DERIVED (sizeof(derived) / sizeof(derived[0]))

static size_t find_derived(const struct pb_cat_table *t)
{
    size_t i = 0;

    while (i < DERIVED &&
           (strcmp(t->schema, derived[i].schema) != 0 || strcmp(t->name, derived[i].name) != 0))
        i++;
    return i;
}

bool pb_derived_is(const struct pb_cat_table *t)
{
    return find_derived(t) < DERIVED;
}

bool pb_derived_uses(const struct pb_cat_table *t, const struct pb_cat_table *other)
{
    char name[2 * PB_CAT_NAME + 16];
    size_t i = find_derived(t), n;

    n = (size_t)snprintf(name, sizeof(name), "memory.%s.%s", other->schema, other->name);
    for (const char *at = i < DERIVED ? strstr(derived[i].sql, name) : NULL; at; at = strstr(at + 1, name))
        if (!strchr("_abcdefghijklmnopqrstuvwxyz", at[n]) || !at[n])
            return true;
    return false;
}

char *pb_derived_select(const struct pb_cat_table *t, const char *rows, bool ranks)
{
    size_t i = find_derived(t);
    char *sql;

    if (i >= DERIVED || asprintf(&sql, derived[i].sql, rows, ranks ? derived[i].by_rank : "") < 0)
        return NULL;
    return sql;
}
