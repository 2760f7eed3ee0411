/* memory_usage: the probe that records the process's use of the machine, a row a second, from the resident
 * thread. Inside of probing.trace("memory_usage") a row every 10 ms, for the first ten seconds of the block,
 * then every 100 ms; and one where a block begins and ends. */
#include "agent/core/agent_clock.h"
#include "agent/core/small_files.h"
#include "agent/core/wake.h"
#include "agent/probes/probe.h"
#include "control/tables.def"
#include "table/arena.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define MB       (1024.0 * 1024.0)
#define LEAST_NS (10 * PB_NS_PER_MS)
#define FINE_NS  (10 * PB_NS_PER_MS)
#define SLOWER   10 /* factor, after FINE_FOR */
#define FINE_FOR (10 * PB_NS_PER_S)

enum { PB_IDS_OF(PB_TABLE_MEMORY_USAGE) COLUMNS };

static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_MEMORY_USAGE)};

static struct pb_table *table;
static uint64_t interval_ns, due_ns, block_start_ns; /* block_start_ns: when the current block started */
static int blocks;                                   /* that are open */
static int row_wanted;                               /* a block began or ended since the last row */

void pb_memory_usage_block(int by)
{
    int open = __atomic_load_n(&blocks, __ATOMIC_RELAXED);

    /* A child has forgotten blocks that began before the fork, or in another thread of the parent. */
    while (!__atomic_compare_exchange_n(&blocks, &open, open + by > 0 ? open + by : 0, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
    if (by > 0)
        __atomic_store_n(&block_start_ns, pb_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&row_wanted, 1, __ATOMIC_RELEASE);
    pb_wake();
}

static int urgent(void)
{
    return __atomic_load_n(&row_wanted, __ATOMIC_ACQUIRE);
}

static int start(struct pb_arena *arena, const char *settings, char *why, size_t why_size)
{
    const struct pb_table_spec spec = {
        .name = PB_NAME_OF(PB_TABLE_MEMORY_USAGE),
        .comment = PB_COMMENT_OF(PB_TABLE_MEMORY_USAGE),
        .columns = columns,
        .ncolumns = COLUMNS,
    };

    int r = pb_probe_start_rows(arena, &spec, settings, LEAST_NS, &interval_ns, &table, why, why_size);
    if (r < 0)
        return r;
    due_ns = pb_now_ns();
    return 0;
}

static void forget(void)
{
    table = NULL;
}

static void forget_in_child(void)
{
    table = NULL;
    __atomic_store_n(&blocks, 0, __ATOMIC_RELAXED);
}

static int stop(char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    forget();
    return 0;
}

static void describe(char *ret, size_t size)
{
    snprintf(ret, size, "a row every %.3g s", (double)interval_ns / 1e9);
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* "VmSwap:   12 kB" in a status file. */
static int status_number(const char *status, const char *name, long *ret)
{
    const char *line = strstr(status, name);
    if (!line)
        return -1;
    *ret = strtol(line + strlen(name), NULL, 10);
    return 0;
}

/* Writes a row. Values that cannot be read are NULL. */
static void record(void)
{
    char statm[128], status[4096];
    long pages_total, pages_resident, number;
    struct rusage usage;
    struct pb_row row;
    double page_mb = (double)sysconf(_SC_PAGESIZE) / MB;

    pb_file_read("/proc/self/statm", statm, sizeof(statm));
    pb_file_read("/proc/self/status", status, sizeof(status));
    getrusage(RUSAGE_SELF, &usage);
    if (pb_row_begin(table, &row) < 0)
        return;
    if (sscanf(statm, "%ld %ld", &pages_total, &pages_resident) == 2) {
        pb_set_f64(&row, MEMORY_MB, (double)pages_resident * page_mb);
        pb_set_f64(&row, VMS_MB, (double)pages_total * page_mb);
    }
    if (status_number(status, "VmSwap:", &number) == 0)
        pb_set_f64(&row, SWAP_MB, (double)number / 1024.0);
    if (status_number(status, "Threads:", &number) == 0)
        pb_set_i32(&row, THREADS, (int32_t)number);
    pb_set_i64(&row, MINOR_FAULTS, usage.ru_minflt);
    pb_set_i64(&row, MAJOR_FAULTS, usage.ru_majflt);
    pb_set_f64(&row, CPU_USER_S, seconds(usage.ru_utime));
    pb_set_f64(&row, CPU_SYSTEM_S, seconds(usage.ru_stime));
    pb_set_i64(&row, VOLUNTARY_SWITCHES, usage.ru_nvcsw);
    pb_set_i64(&row, INVOLUNTARY_SWITCHES, usage.ru_nivcsw);
    pb_row_commit(&row);
}

/* The present interval between two rows. */
static uint64_t step_ns(uint64_t now)
{
    uint64_t fine = FINE_NS;

    if (__atomic_load_n(&blocks, __ATOMIC_RELAXED) == 0)
        return interval_ns;
    if (now > __atomic_load_n(&block_start_ns, __ATOMIC_RELAXED) + FINE_FOR)
        fine *= SLOWER;
    return fine < interval_ns ? fine : interval_ns;
}

static uint64_t tick(uint64_t now)
{
    __atomic_store_n(&row_wanted, 0, __ATOMIC_RELEASE);
    record();
    due_ns += step_ns(now);
    if (due_ns <= now ||
        due_ns > now + step_ns(now)) /* the process was stopped for a while, or the interval has changed */
        due_ns = now + step_ns(now);
    return due_ns;
}

const struct pb_probe pb_probe_memory_usage = {
    .name = "memory_usage",
    .text = "what the process takes of the machine: memory, faults, CPU time, threads",
    .settings = "interval=1s",
    .on = 1,
    .start = start,
    .stop = stop,
    .tick = tick,
    .urgent = urgent,
    .forked = forget_in_child,
    .describe = describe,
};
