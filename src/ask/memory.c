/* memory: see memory.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ask/few.h"
#include "ask/memory.h"
#include "ask/parts.h"
#include "ask/sources.h"
#include "ask/task.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/procfs.h"
#include "control/message.h"
#include "profile/gpu.h"
#include "remote/python/python_reader.h"
#include "remote/source.h"

enum { TIMEOUT_MS = 30000, NOW_TIMEOUT_MS = 5000, TORCH_TIMEOUT_MS = 1000, GPU_TIMEOUT_MS = 3000 };
enum { PARALLEL = 4 }; /* each process also needs an SQL worker, which takes memory */

/* What is not taken for growth: so much, or so much of what the process has. A line is named that holds at
 * least this share of the growth. */
#define NOISE_BYTES   (4.0 * (1 << 20))
#define NOISE_SHARE   0.01
#define CULPRIT_SHARE 0.3

/* The kernel's figures for a live process. */
static int take_process(const struct pb_query_sources *sources, struct pb_few *few, struct pb_memory *m,
                        struct pb_err *err)
{
    int r = pb_few_ask(sources, "SELECT rss_bytes, peak_rss_bytes, vms_bytes, swap_bytes FROM system.process",
                       few, err);
    if (r < 0)
        return r;
    m->rss = pb_few_number(few, 0, 0);
    m->peak = pb_few_number(few, 0, 1);
    m->vms = pb_few_number(few, 0, 2);
    m->swap = pb_few_number(few, 0, 3);
    r = pb_few_ask(
        sources,
        "SELECT coalesce(path, 'anonymous'), sum(rss_bytes)::BIGINT, sum(bytes)::BIGINT, count(*) FROM "
        "system.maps "
        "GROUP BY 1 ORDER BY 2 DESC NULLS LAST LIMIT 5",
        few, err);
    for (unsigned i = 0; r == 0 && i < few->n && i < PB_MEMORY_MAPS; i++) {
        snprintf(m->maps[i].path, sizeof(m->maps[i].path), "%s", few->cells[i][0]);
        m->maps[i].rss = pb_few_number(few, i, 1);
        m->maps[i].size = pb_few_number(few, i, 2);
        m->maps[i].count = (unsigned)pb_few_count(few, i, 3);
        m->nmaps++;
    }
    return r;
}

/* A start takes memory, and a cache fills up: both look like a leak for a while. So only the second half of
 * the time counts (of two hours at most), and it must go on in its own second half. */
static double judge_growth(const struct pb_memory *m, double half, double quarter)
{
    double changed = fabs(half) / 60 * m->growth_s, noise = NOISE_SHARE * m->rss;

    if (m->recorded_s < PB_MEMORY_JUDGED_S || isnan(half) || isnan(quarter))
        return NAN;
    return changed < NOISE_BYTES || changed < noise || half * quarter <= 0 || fabs(quarter) < fabs(half) / 4
               ? 0
               : half;
}

/* Which line holds what was allocated since `from`, microseconds since 1970. */
static int take_culprit(const struct pb_query_sources *sources, struct pb_few *few, struct pb_memory *m,
                        const char *from, struct pb_err *err)
{
    char sql[512];

    snprintf(
        sql, sizeof(sql),
        "SELECT function_name, file, lineno, sum(allocated_bytes) FILTER (timestamp >= make_timestamp(%s)) "
        "FROM memory_allocations GROUP BY ALL ORDER BY 4 DESC NULLS LAST LIMIT 1",
        from);
    int r = pb_few_ask(sources, sql, few, err);
    m->sampled = r == 0 && few->n > 0;
    double held = pb_few_number(few, 0, 3);
    if (r < 0 || !m->sampled || !(held > CULPRIT_SHARE * m->growth / 60 * m->growth_s))
        return r;
    snprintf(m->function, sizeof(m->function), "%s", few->cells[0][0]);
    snprintf(m->file, sizeof(m->file), "%s", few->cells[0][1]);
    m->line = (int)pb_few_number(few, 0, 2);
    m->held = held;
    return 0;
}

/* Rows of the agent and of `record` together: both have the memory in RAM. */
static int take_history(const struct pb_query_sources *sources, struct pb_few *few, struct pb_memory *m,
                        struct pb_err *err)
{
    static const char *const both =
        "WITH h AS (SELECT epoch(timestamp) AS t, bytes FROM (SELECT timestamp, memory_mb * 1048576 AS bytes "
        "FROM memory_usage UNION ALL SELECT timestamp, rss_bytes::DOUBLE FROM pb_scan('python.memory') WHERE "
        "pid = %d) WHERE bytes IS NOT NULL), e AS (SELECT max(t) AS t1, greatest(min(t), max(t) - 7200) AS "
        "t0 "
        "FROM h) ";
    char sql[1024], from[32];

    int len = snprintf(sql, sizeof(sql), both, (int)m->pid);
    snprintf(sql + len, sizeof(sql) - (size_t)len,
             "SELECT count(*), max(t) - min(t), 60 * regr_slope(bytes, t) FILTER (t >= (t0 + t1) / 2), "
             "60 * regr_slope(bytes, t) FILTER (t >= (t0 + 3 * t1) / 4), arg_max(bytes, t), max(bytes), "
             "(1e6 * any_value(t0 + t1) / 2)::BIGINT, any_value(t1 - t0) / 2 FROM h, e");
    int r = pb_few_ask(sources, sql, few, err);
    if (r < 0 || few->n == 0)
        return r;
    m->rows = (unsigned)pb_few_count(few, 0, 0);
    m->recorded_s = pb_few_number(few, 0, 1);
    m->growth_s = pb_few_number(few, 0, 7);
    if (m->dead) {
        m->rss = pb_few_number(few, 0, 4);
        m->peak = pb_few_number(few, 0, 5);
    }
    m->growth = judge_growth(m, pb_few_number(few, 0, 2), pb_few_number(few, 0, 3));
    snprintf(from, sizeof(from), "%s", few->cells[0][6]);
    snprintf(sql + len, sizeof(sql) - (size_t)len,
             "SELECT avg(bytes) FROM (SELECT bytes, ntile(%d) OVER (ORDER BY t) AS piece FROM h) "
             "GROUP BY piece ORDER BY piece",
             (int)PB_MEMORY_POINTS);
    r = pb_few_ask(sources, sql, few, err);
    for (unsigned i = 0; r == 0 && i < few->n; i++)
        m->points[m->npoints++] = pb_few_number(few, i, 0);
    return r == 0 && m->growth > 0 ? take_culprit(sources, few, m, from, err) : r;
}

/* The newest value of each column: not every row has all. */
static int take_recorded_python(const struct pb_query_sources *sources, struct pb_few *few,
                                struct pb_memory *m, struct pb_err *err)
{
    static const char *const columns[] = {"heap_arenas",     "heap_bytes",       "heap_blocks",
                                          "gc_gen0",         "gc_gen1",          "gc_gen2",
                                          "torch_cpu_bytes", "torch_cuda_bytes", "gpu_bytes"};
    char sql[1024] = "SELECT ";
    size_t len = strlen(sql);

    for (unsigned i = 0; i < PB_FEW_CELLS; i++)
        len += (size_t)snprintf(sql + len, sizeof(sql) - len, "%sarg_max(%s, timestamp)", i ? ", " : "",
                                columns[i]);
    snprintf(sql + len, sizeof(sql) - len, " FROM pb_scan('python.memory') WHERE pid = %d", (int)m->pid);
    int r = pb_few_ask(sources, sql, few, err);
    if (r < 0)
        return r;
    m->python =
        (struct pb_py_memory){pb_few_count(few, 0, 0),
                              pb_few_count(few, 0, 1),
                              pb_few_count(few, 0, 2),
                              {pb_few_count(few, 0, 3), pb_few_count(few, 0, 4), pb_few_count(few, 0, 5)}};
    m->torch_cpu = pb_few_number(few, 0, 6);
    m->torch_cuda = pb_few_number(few, 0, 7);
    m->gpu = pb_few_number(few, 0, 8);
    return 0;
}

/* Python's heap now, read from outside. */
static void take_python(struct pb_memory *m)
{
    struct pb_source source;
    struct pb_py_heap heap = {0};
    struct pb_py_memory now;
    struct pb_py *py;

    if (pb_source_process(m->pid, &source, NULL) < 0)
        return;
    if (pb_py_open(&source, false, &py, NULL) == 0) {
        if (pb_py_memory(py, &heap, &now) == 0)
            m->python = now;
        pb_py_close(py);
    }
    pb_source_close(&source);
}

/* GPU memory by the driver; -1: none. */
static int64_t gpu_memory_of(pid_t pid)
{
    struct pb_err err;
    struct pb_gpus *gpus;
    int64_t sum = -1;

    if (pb_gpus_open(&gpus, &err) < 0)
        return -1;
    for (unsigned i = 0; i < pb_gpus_count(gpus); i++) {
        int64_t bytes = pb_gpus_memory_of(gpus, i, pid);
        if (bytes >= 0)
            sum = (sum < 0 ? 0 : sum) + bytes;
    }
    pb_gpus_close(gpus);
    return sum;
}

static int read_gpu(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct pb_memory *m = arg;
    int64_t *bytes = pb_room_alloc(room, sizeof(*bytes));

    if (!bytes)
        return -ENOMEM;
    *bytes = gpu_memory_of(m->pid);
    pb_task_answer(room, bytes);
    return *bytes < 0 ? -ENODATA : 0;
}

/* In a child with its own deadline: a call into a faulty driver may never return, and the rest of the answer
 * is still wanted. */
static void take_gpu(struct pb_memory *m)
{
    const struct pb_ask quiet = {.in_child = true};
    struct pb_task task = {
        .work = read_gpu, .arg = m, .limit_ms = GPU_TIMEOUT_MS, .room_size = 1 << 16, .always = true};

    if (pb_task_run(&quiet, &task, NULL) < 0)
        return;
    m->gpu = (double)*(const int64_t *)pb_task_answer_of(&task); /* replaces the recorded value */
    pb_room_free(task.room);
}

/* --- torch: only its allocator knows, and only Python can ask it --- */

static const char question[] =
    "(lambda t: (sum(map(t.cuda.memory_allocated, range(t.cuda.device_count()))), "
    "sum(map(t.cuda.memory_reserved, range(t.cuda.device_count())))) "
    "if t is not None and t.cuda.is_initialized() else (0, 0))(__import__('sys').modules.get('torch'))";

static int ask_torch(struct pb_client *client, struct pb_memory *m)
{
    uint8_t buf[sizeof(question) + 256];
    struct pb_frame_writer w;
    struct pb_frame frame;
    struct pb_field text;
    char value[128];

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_CODE, question);
    pb_frame_put_str(&w, PB_TAG_FILENAME, "<memory>");
    pb_frame_put_u64(&w, PB_TAG_MODE, PB_RUN_EVAL);
    pb_frame_put_u64(&w, PB_TAG_TIMEOUT_MS, TORCH_TIMEOUT_MS);
    pb_client_limit(client, 2 * TORCH_TIMEOUT_MS);
    int64_t id = pb_client_request(client, &w, PB_MSG_RUN);
    int r = id < 0 ? (int)id : 0, got = -ENODATA;
    while (r == 0 && (r = pb_client_next(client, &frame, -1)) == 0 && frame.type == PB_MSG_OUTPUT) {
        if (pb_field_u64(&frame, PB_TAG_STREAM, 0) != PB_STREAM_VALUE ||
            pb_field_find(&frame, PB_TAG_TEXT, &text) < 0)
            continue;
        snprintf(value, sizeof(value), "%.*s", (int)text.size, (const char *)text.data);
        if (sscanf(value, "(%lf, %lf)", &m->torch_cuda, &m->torch_cuda_reserved) == 2)
            got = 0;
    }
    return r < 0 ? r : got;
}

static void take_torch(const struct pb_ask *asked, const struct pb_query_sources *sources, struct pb_few *few,
                       struct pb_memory *m)
{
    struct pb_session session;
    struct pb_err err;

    if (pb_few_ask(sources,
                   "SELECT count(*) FROM system.maps WHERE path LIKE '%/libtorch\\_cuda%' ESCAPE '\\'", few,
                   &err) < 0 ||
        pb_few_count(few, 0, 0) <= 0)
        return;
    if (pb_parts_session(asked, m->pid, true, TORCH_TIMEOUT_MS, &session, &err) < 0) {
        m->torch_note = "known when the process is probed (probing -t PID inject)";
        return;
    }
    if (ask_torch(&session.client, m) < 0)
        m->torch_note = "Python did not answer within a second";
    pb_session_done(&session);
}

static int take_all(const struct pb_ask *asked, const struct pb_query_sources *sources, struct pb_memory *m,
                    struct pb_err *err)
{
    _cleanup_free_ struct pb_few *few = calloc(1, sizeof(*few));

    int r = few ? 0 : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0 && !m->dead)
        r = take_process(sources, few, m, err);
    if (r == 0)
        r = take_history(sources, few, m, err);
    if (r == 0)
        r = take_recorded_python(sources, few, m, err);
    if (r == 0 && !m->dead) {
        take_python(m);
        take_gpu(m);
        take_torch(asked, sources, few, m);
    }
    return r;
}

static struct pb_memory nothing_known(pid_t pid)
{
    return (struct pb_memory){
        .pid = pid,
        .rss = NAN,
        .peak = NAN,
        .vms = NAN,
        .swap = NAN,
        .python = {PB_UNKNOWN, PB_UNKNOWN, PB_UNKNOWN, {PB_UNKNOWN, PB_UNKNOWN, PB_UNKNOWN}},
        .torch_cpu = NAN,
        .torch_cuda = NAN,
        .torch_cuda_reserved = NAN,
        .gpu = NAN,
        .growth = NAN,
        .held = NAN};
}

/* Runs in a child. */
static int take_now(const struct pb_ask *asked, void *arg, struct pb_room *room, struct pb_err *err)
{
    struct pb_memory m = nothing_known(*(const pid_t *)arg);
    int64_t rss = pb_proc_rss(m.pid);

    (void)asked;
    if (rss < 0)
        return pb_fail(err, -ESRCH, "process %d has ended", (int)m.pid);
    m.rss = (double)rss;
    take_python(&m);
    take_gpu(&m);
    struct pb_memory *answer = pb_room_copy(room, &m, sizeof(m));
    pb_task_answer(room, answer);
    return answer ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_memory_now(const struct pb_ask *asked, pid_t pid, struct pb_memory *ret, struct pb_err *err)
{
    struct pb_task task = {.work = take_now, .arg = &pid, .pid = pid, .limit_ms = NOW_TIMEOUT_MS};

    return pb_task_fetch(asked, &task, ret, sizeof(*ret), err);
}

/* Runs in a child. */
static int take_memory(const struct pb_ask *asked, void *arg, struct pb_room *room, struct pb_err *err)
{
    _cleanup_(pb_query_sources_done) struct pb_query_sources sources = {0};
    struct pb_target copy = *(const struct pb_target *)arg;
    struct pb_memory m = nothing_known(copy.pid);

    m.dead = copy.dead;
    memcpy(m.label, copy.label, sizeof(m.label));
    int r = pb_sources_open(asked, &(struct pb_targets){.at = &copy, .n = 1}, &sources, err);
    if (r == 0)
        r = take_all(asked, &sources, &m, err);
    if (r < 0)
        return r;
    struct pb_memory *answer = pb_room_copy(room, &m, sizeof(m));
    pb_task_answer(room, answer);
    return answer ? 0 : pb_fail(err, -ENOMEM, "out of memory");
}

int pb_memory_ask(const struct pb_ask *asked, const struct pb_targets *targets, struct pb_memory_answer *ret)
{
    struct pb_task *tasks = calloc(targets->n + 1, sizeof(*tasks));

    if (!tasks)
        return -ENOMEM;
    for (size_t i = 0; i < targets->n; i++)
        tasks[i] = (struct pb_task){.work = take_memory,
                                    .arg = &targets->at[i],
                                    .pid = targets->at[i].pid,
                                    .limit_ms = TIMEOUT_MS,
                                    .room_size = sizeof(struct pb_memory) + 4096};
    pb_tasks_run(asked, tasks, targets->n, PARALLEL);
    for (size_t i = 0; i < targets->n; i++) {
        const struct pb_memory *answer = pb_task_answer_of(&tasks[i]);
        ret[i] = (struct pb_memory_answer){.result = tasks[i].result, .err = tasks[i].err};
        if (answer)
            ret[i].memory = *answer;
        pb_room_free(tasks[i].room);
    }
    free(tasks);
    return 0;
}
