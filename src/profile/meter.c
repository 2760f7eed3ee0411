/* meter: see meter.h. */
#include "profile/meter.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/procfs.h"
#include "base/time.h"
#include "control/tables.def"
#include "profile/gpu.h"
#include "remote/python/heap.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"
#include "table/arena.h"

enum { PERIOD_S = 1, STOP_S = 3, COUNT_SHARE = 100 };

#define M_ID(id, ...) M_##id,
#define G_ID(id, ...) G_##id,
enum { PB_TABLE_MEMORY(PB_NOTHING, M_ID) M_COLUMNS };
enum { PB_TABLE_GPU_METRICS(PB_NOTHING, G_ID) G_COLUMNS };

static const struct pb_column memory_columns[] = {PB_COLUMNS_OF(PB_TABLE_MEMORY)};

static const struct pb_column gpu_columns[] = {PB_COLUMNS_OF(PB_TABLE_GPU_METRICS)};

static const struct pb_table_spec memory_table = {.name = PB_NAME_OF(PB_TABLE_MEMORY),
                                                  .comment = PB_COMMENT_OF(PB_TABLE_MEMORY),
                                                  .columns = memory_columns,
                                                  .ncolumns = M_COLUMNS};
static const struct pb_table_spec gpu_table = {.name = PB_NAME_OF(PB_TABLE_GPU_METRICS),
                                               .comment = PB_COMMENT_OF(PB_TABLE_GPU_METRICS),
                                               .columns = gpu_columns,
                                               .ncolumns = G_COLUMNS};

struct process {
    pid_t pid;
    bool gone;
    struct pb_source source;
    struct pb_py *py; /* NULL: no Python that can be read */
    struct pb_py_heap heap;
    uint64_t count_at; /* when its blocks are counted next: a large heap not every second */
};

struct pb_meter {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop, ended;
    struct pb_arena *arena;
    struct pb_table *memory, *gpu;
    struct pb_gpus *gpus;
    size_t n;
    struct process processes[];
};

static void set_known(struct pb_row *row, unsigned column, int64_t value)
{
    if (value >= 0)
        pb_set_i64(row, column, value);
}

static void set_double(struct pb_row *row, unsigned column, double value, double scale)
{
    if (!isnan(value))
        pb_set_f64(row, column, value / scale);
}

static int64_t gpu_memory_of(struct pb_meter *m, pid_t pid)
{
    int64_t sum = -1;

    for (unsigned i = 0; m->gpus && i < pb_gpus_count(m->gpus); i++) {
        int64_t bytes = pb_gpus_memory_of(m->gpus, i, pid);
        if (bytes >= 0)
            sum = (sum < 0 ? 0 : sum) + bytes;
    }
    return sum;
}

/* Counting blocks may take at most one percent of a core. */
static int measure_python(struct process *p, struct pb_py_memory *ret)
{
    uint64_t began = pb_now_ns();

    p->heap.skip_blocks = began < p->count_at;
    int r = pb_py_memory(p->py, &p->heap, ret);
    if (!p->heap.skip_blocks)
        p->count_at = began + COUNT_SHARE * (pb_now_ns() - began);
    return r;
}

static void measure_process(struct pb_meter *m, struct process *p)
{
    struct pb_py_memory memory;
    struct pb_row row;

    int64_t rss = pb_proc_rss(p->pid);
    if (rss < 0) {
        p->gone = true;
        return;
    }
    bool python = p->py && measure_python(p, &memory) == 0;
    int64_t gpu = gpu_memory_of(m, p->pid);
    if (pb_row_begin(m->memory, &row) < 0)
        return;
    pb_set_i32(&row, M_PID, p->pid);
    pb_set_i64(&row, M_RSS, rss);
    if (python) {
        set_known(&row, M_BLOCKS, memory.heap_blocks);
        set_known(&row, M_ARENAS, memory.heap_arenas);
        set_known(&row, M_HEAP, memory.heap_bytes);
        for (unsigned i = 0; i < 3; i++)
            set_known(&row, M_GEN0 + i, memory.gc[i]);
    }
    set_known(&row, M_GPU, gpu);
    pb_row_commit(&row);
}

static void measure_gpu(struct pb_meter *m, unsigned i)
{
    struct pb_gpu_sample s;
    struct pb_row row;
    int64_t ours = -1;

    if (pb_gpus_sample(m->gpus, i, &s) < 0)
        return;
    for (size_t k = 0; k < m->n; k++) {
        int64_t bytes = m->processes[k].gone ? -1 : pb_gpus_memory_of(m->gpus, i, m->processes[k].pid);
        if (bytes >= 0)
            ours = (ours < 0 ? 0 : ours) + bytes;
    }
    if (pb_row_begin(m->gpu, &row) < 0)
        return;
    pb_set_i32(&row, G_GPU, (int32_t)i);
    if (s.name[0])
        pb_set_string(&row, G_NAME, s.name, strlen(s.name));
    if (s.uuid[0])
        pb_set_string(&row, G_UUID, s.uuid, strlen(s.uuid));
    set_double(&row, G_UTIL, s.util, 1);
    set_double(&row, G_MEMORY_UTIL, s.memory_util, 1);
    set_double(&row, G_USED, s.memory_used, 1 << 20);
    set_double(&row, G_TOTAL, s.memory_total, 1 << 20);
    set_double(&row, G_TEMPERATURE, s.temperature, 1);
    set_double(&row, G_POWER, s.power, 1);
    set_double(&row, G_CLOCK, s.clock, 1);
    if (ours >= 0)
        pb_set_f64(&row, G_PROCESS, (double)ours / (1 << 20));
    set_double(&row, G_ACTIVE, s.active, 1);
    set_double(&row, G_SM, s.sm, 1);
    set_double(&row, G_OCCUPANCY, s.occupancy, 1);
    set_double(&row, G_TENSOR, s.tensor, 1);
    set_double(&row, G_DRAM, s.dram, 1);
    set_double(&row, G_PCIE, s.pcie, 1);
    set_double(&row, G_NVLINK, s.nvlink, 1);
    set_double(&row, G_LIMIT, s.power_limit, 1);
    set_double(&row, G_ECC, s.ecc, 1);
    if (s.slowed[0])
        pb_set_string(&row, G_SLOWED, s.slowed, strlen(s.slowed));
    if (s.doing)
        pb_set_string(&row, G_DOING, s.doing, strlen(s.doing));
    pb_row_commit(&row);
}

/* Waits for the next second. False: the meter is to stop. */
static bool wait_for_second(struct pb_meter *m, struct timespec *at)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    at->tv_sec += PERIOD_S;
    if (now.tv_sec > at->tv_sec) /* rows of missed seconds are not made up for */
        *at = now;
    pthread_mutex_lock(&m->lock);
    while (!m->stop && pthread_cond_timedwait(&m->wake, &m->lock, at) == 0)
        ;
    bool go_on = !m->stop;
    pthread_mutex_unlock(&m->lock);
    return go_on;
}

static void open_gpus(struct pb_meter *m)
{
    struct pb_err err = {0};

    int r = pb_gpus_open(&m->gpus, &err);
    if (r == 0)
        r = pb_table_new(m->arena, &gpu_table, &m->gpu);
    if (r < 0) {
        pb_gpus_close(m->gpus);
        m->gpus = NULL;
    }
    /* A GPU that cannot be read is reported: otherwise the table would be empty for no visible reason. */
    if (r < 0 && r != -ENOENT && r != -ENODEV)
        fprintf(stderr, "probing: no gpu_metrics: %s\n", pb_err_text(&err, r));
}

static void *run_meter(void *arg)
{
    struct pb_meter *m = arg;
    struct timespec at;

    open_gpus(m);
    clock_gettime(CLOCK_MONOTONIC, &at);
    for (size_t i = 0; i < m->n; i++) {
        struct process *p = &m->processes[i];
        if (pb_source_process(p->pid, &p->source, NULL) < 0 ||
            pb_py_open(&p->source, false, &p->py, NULL) < 0)
            p->py = NULL;
    }
    do {
        for (size_t i = 0; i < m->n; i++)
            if (!m->processes[i].gone)
                measure_process(m, &m->processes[i]);
        for (unsigned i = 0; m->gpus && i < pb_gpus_count(m->gpus); i++)
            measure_gpu(m, i);
    } while (wait_for_second(m, &at));
    pthread_mutex_lock(&m->lock);
    m->ended = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static int start_thread(struct pb_meter *m)
{
    pthread_condattr_t attributes;
    sigset_t all, before;

    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    /* Blocks all signals: they must interrupt the sleep of the sampling thread instead. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = -pthread_create(&m->thread, NULL, run_meter, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

int pb_meter_start(struct pb_arena *arena, const pid_t *pids, size_t n, struct pb_meter **ret,
                   struct pb_err *err)
{
    struct pb_meter *m = calloc(1, sizeof(*m) + n * sizeof(m->processes[0]));

    if (!m)
        return pb_fail(err, -ENOMEM, "out of memory");
    m->n = n;
    for (size_t i = 0; i < n; i++)
        m->processes[i] = (struct process){.pid = pids[i], .source.fd = -1};
    m->arena = arena;
    int r = pb_table_new(arena, &memory_table, &m->memory);
    if (r == 0)
        r = start_thread(m);
    if (r < 0) {
        free(m);
        return pb_fail(err, r, "memory and GPUs cannot be recorded: %s", strerror(-r));
    }
    *ret = m;
    return 0;
}

bool pb_meter_stop(struct pb_meter *m)
{
    struct timespec until;

    if (!m)
        return true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += STOP_S;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->wake);
    int r = 0;
    while (!m->ended && r == 0)
        r = pthread_cond_timedwait(&m->wake, &m->lock, &until);
    bool ended = m->ended;
    pthread_mutex_unlock(&m->lock);
    if (!ended)
        return false;
    pthread_join(m->thread, NULL);
    for (size_t i = 0; i < m->n; i++) {
        pb_py_close(m->processes[i].py);
        pb_source_close(&m->processes[i].source);
    }
    pb_gpus_close(m->gpus);
    free(m);
    return true;
}
