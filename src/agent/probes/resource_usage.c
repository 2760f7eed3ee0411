/* resource_usage: the probe that records what the process holds (descriptors, shared memory, children), what
 * its stepping thread waits for (CPUs), and the state of its control group, a row a second, from the resident
 * thread.
 *
 * Everything is read from small files of /proc and /sys, without the heap. Looking through all descriptors
 * and threads takes longer the more there are: after a look that took t, the next one comes no sooner than
 * after 4000 t, so that looks never take more than 0.025% of a CPU. */
#include "agent/core/agent_clock.h"
#include "agent/core/small_files.h"
#include "agent/probes/control_group.h"
#include "agent/probes/probe.h"
#include "agent/probes/torch/torch.h"
#include "control/listing.h"
#include "control/tables.def"
#include "table/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAST_NS (100 * PB_NS_PER_MS)
#define REST     4000
#define AT_MOST  1024 /* descriptors, and threads, that one look goes through */

enum { PB_IDS_OF(PB_TABLE_RESOURCE_USAGE) COLUMNS };

static const struct pb_column columns[] = {PB_COLUMNS_OF(PB_TABLE_RESOURCE_USAGE)};

static struct pb_table *table;
static struct pb_control_group group;
static uint64_t interval_ns, due_ns, look_due_ns;

static int start(struct pb_arena *arena, const char *settings, char *why, size_t why_size)
{
    const struct pb_table_spec spec = {
        .name = PB_NAME_OF(PB_TABLE_RESOURCE_USAGE),
        .comment = PB_COMMENT_OF(PB_TABLE_RESOURCE_USAGE),
        .columns = columns,
        .ncolumns = COLUMNS,
    };

    int r = pb_probe_start_rows(arena, &spec, settings, LEAST_NS, &interval_ns, &table, why, why_size);
    if (r < 0)
        return r;
    pb_control_group_find(&group);
    due_ns = pb_now_ns();
    return 0;
}

static void forget(void)
{
    table = NULL;
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

/* Calls count(folder, name) for each entry of a folder that is a number. Returns how many there were; -1: the
 * folder cannot be read, or has more than AT_MOST. */
static int for_numbers(const char *folder, void (*count)(int folder, const char *name, void *sums),
                       void *sums)
{
    _Alignas(struct pb_listed) char buf[4096];
    int found = 0;
    long n = 0;

    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while (found >= 0 && (n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0)
        for (long at = 0; at < n && found >= 0;) {
            const struct pb_listed *e = (const struct pb_listed *)(const void *)(buf + at);
            at += e->size;
            if (e->name[0] < '0' || e->name[0] > '9')
                continue;
            count(fd, e->name, sums);
            found = found < AT_MOST ? found + 1 : -1;
        }
    close(fd);
    return n < 0 ? -1 : found;
}

struct kinds {
    int files, sockets, pipes;
};

static void count_descriptor(int folder, const char *name, void *sums)
{
    struct kinds *kinds = sums;
    char link[32];

    ssize_t n = readlinkat(folder, name, link, sizeof(link) - 1);
    if (n <= 0)
        return;
    link[n] = '\0';
    kinds->files += link[0] == '/';
    kinds->sockets += strncmp(link, "socket:", 7) == 0;
    kinds->pipes += strncmp(link, "pipe:", 5) == 0;
}

/* Adds the children that a thread of the process has started; -1 as sum: the kernel does not list them. */
static void count_children(int tasks, const char *tid, void *sums)
{
    char path[64], text[4096];
    int *children = sums;
    ssize_t n;

    if (*children < 0)
        return;
    snprintf(path, sizeof(path), "%s/children", tid);
    int fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        /* The thread may have ended; a kernel without such files has none for the main thread either. */
        if (errno == ENOENT && atoi(tid) == getpid())
            *children = -1;
        return;
    }
    while ((n = read(fd, text, sizeof(text))) > 0)
        for (ssize_t i = 0; i < n; i++)
            *children += text[i] == ' ';
    close(fd);
}

static void set_looked_at(struct pb_row *row, uint64_t now)
{
    struct kinds kinds = {0};
    int children = 0;

    if (now < look_due_ns)
        return;
    int n = for_numbers("/proc/self/fd", count_descriptor, &kinds);
    if (n >= 0) {
        pb_set_i32(row, DESCRIPTORS, n);
        pb_set_i32(row, FILES, kinds.files);
        pb_set_i32(row, SOCKETS, kinds.sockets);
        pb_set_i32(row, PIPES, kinds.pipes);
    }
    if (for_numbers("/proc/self/task", count_children, &children) >= 0 && children >= 0)
        pb_set_i32(row, CHILDREN, children);
    look_due_ns = now + (pb_now_ns() - now) * REST;
}

static void set_thread(struct pb_row *row)
{
    char path[64], text[128];
    uint64_t run, delay;

    int32_t tid = pb_torch_stepping_thread();
    if (tid <= 0)
        tid = (int32_t)getpid();
    pb_set_i32(row, THREAD_ID, tid);
    snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", (int)tid);
    pb_file_read(path, text, sizeof(text));
    if (sscanf(text, "%" SCNu64 " %" SCNu64, &run, &delay) == 2) {
        pb_set_f64(row, RUN_S, (double)run / 1e9);
        pb_set_f64(row, DELAY_S, (double)delay / 1e9);
    }
}

static void set_process(struct pb_row *row, uint64_t now)
{
    struct rlimit limit;
    struct stat fds;
    char status[4096];

    set_looked_at(row, now);
    /* From Linux 6.2 on the size of the folder is the number of descriptors. */
    if (stat("/proc/self/fd", &fds) == 0 && fds.st_size > 0)
        pb_set_i32(row, DESCRIPTORS, (int32_t)fds.st_size);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        pb_set_i64(row, DESCRIPTOR_LIMIT, (int64_t)limit.rlim_cur);
    pb_file_read("/proc/self/status", status, sizeof(status));
    const char *shared = strstr(status, "\nRssShmem:");
    if (shared)
        pb_set_f64(row, SHARED_MB, strtod(shared + strlen("\nRssShmem:"), NULL) / 1024.0);
}

static void set_group(struct pb_row *row)
{
    struct pb_control_group_state s;

    pb_control_group_read(&group, &s);
    const struct {
        int column;
        double value;
    } values[] = {{GROUP_MB, s.memory_mb},
                  {GROUP_LIMIT_MB, s.memory_limit_mb},
                  {CPU_LIMIT, s.cpu_limit},
                  {THROTTLED_S, s.throttled_s},
                  {CPU_PRESSURE_S, s.cpu_pressure_s},
                  {MEMORY_PRESSURE_S, s.memory_pressure_s},
                  {IO_PRESSURE_S, s.io_pressure_s}};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (values[i].value >= 0)
            pb_set_f64(row, (unsigned)values[i].column, values[i].value);
    if (s.oom_kills >= 0)
        pb_set_i64(row, OOM_KILLS, s.oom_kills);
}

/* Writes a row. Values that cannot be read are NULL. */
static void record(uint64_t now)
{
    struct pb_row row;

    if (pb_row_begin(table, &row) < 0)
        return;
    set_thread(&row);
    set_process(&row, now);
    set_group(&row);
    pb_row_commit(&row);
}

static uint64_t tick(uint64_t now)
{
    record(now);
    due_ns += interval_ns;
    if (due_ns <= now) /* the process was stopped for a while */
        due_ns = now + interval_ns;
    return due_ns;
}

const struct pb_probe pb_probe_resource_usage = {
    .name = "resource_usage",
    .text = "what the process holds and waits for: CPUs, descriptors, children, its control group",
    .settings = "interval=1s",
    .on = 1,
    .start = start,
    .stop = stop,
    .tick = tick,
    .forked = forget,
    .describe = describe,
};
