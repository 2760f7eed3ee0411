/* usage: see usage.h. */
#include "agent/usage.h"

#include "agent/files.h"
#include "table/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define MB (1024.0 * 1024.0)

enum column {
    TIMESTAMP,
    MEMORY_MB,
    VMS_MB,
    SWAP_MB,
    MINOR_FAULTS,
    MAJOR_FAULTS,
    CPU_USER_S,
    CPU_SYSTEM_S,
    THREADS,
    VOLUNTARY_SWITCHES,
    INVOLUNTARY_SWITCHES,
    COLUMNS,
};

static const struct pb_column columns[COLUMNS] = {
    [TIMESTAMP] = {"timestamp", PB_TIMESTAMP, 0, NULL, "when the row was taken, UTC"},
    [MEMORY_MB] = {"memory_mb", PB_F64, 0, "MB", "resident memory (RSS)"},
    [VMS_MB] = {"vms_mb", PB_F64, 0, "MB", "address space"},
    [SWAP_MB] = {"swap_mb", PB_F64, 0, "MB", "swapped out"},
    [MINOR_FAULTS] = {"minor_faults", PB_I64, 0, NULL, "page faults served from memory, since start"},
    [MAJOR_FAULTS] = {"major_faults", PB_I64, 0, NULL, "page faults that read from disk, since start"},
    [CPU_USER_S] = {"cpu_user_s", PB_F64, 0, "s", "CPU time in user code, since start"},
    [CPU_SYSTEM_S] = {"cpu_system_s", PB_F64, 0, "s", "CPU time in the kernel, since start"},
    [THREADS] = {"threads", PB_I32, 0, NULL, "threads alive"},
    [VOLUNTARY_SWITCHES] = {"voluntary_switches", PB_I64, 0, NULL, "times it gave up the CPU, since start"},
    [INVOLUNTARY_SWITCHES] = {"involuntary_switches", PB_I64, 0, NULL,
                              "times the CPU was taken away, since start"},
};

int pb_usage_init(struct pb_arena *arena, struct pb_table **ret)
{
    const struct pb_table_spec spec = {
        .name = "memory_usage",
        .comment = "what the process takes of the machine, a row a second",
        .columns = columns,
        .ncolumns = COLUMNS,
    };
    return pb_table_new(arena, &spec, ret);
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

void pb_usage_record(struct pb_table *table)
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
