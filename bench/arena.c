/* bench/arena: what an append costs, clock read included.
 *
 * A row of six columns (timestamp, u64, i32, f64, string or u32, u16) on one thread and on two, with a thread
 * that tends the arena as the agent's does. Variants are interleaved and repeated; each line gives min,
 * median, max. */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "table/arena.h"
#include "table/clock.h"
#include "table/reader.h"

enum { REPEATS = 7, ROWS = 4000000, LATENCIES = 2000000, NAMES = 256 };

enum { COL_TIME, COL_A, COL_B, COL_C, COL_D, COL_E };

struct job {
    struct pb_table *table;
    bool strings;
    long rows;
    double seconds, cpu_seconds;
    long failed;
};

/* Millions of rows per second: by wall-clock time, and by the threads' CPU time, which other programs do not
 * affect. */
struct rate {
    double wall, cpu;
};

static char names[NAMES][32];
static size_t lengths[NAMES];
static atomic_bool stopping;

static double read_clock(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

static inline int append(struct pb_table *t, bool strings, long i, unsigned name)
{
    struct pb_row row;
    int r = pb_row_begin(t, &row);
    if (r < 0)
        return r;
    pb_set_u64(&row, COL_A, (uint64_t)i);
    pb_set_i32(&row, COL_B, (int32_t)i);
    pb_set_f64(&row, COL_C, (double)i);
    if (strings)
        pb_set_string(&row, COL_D, names[name], lengths[name]);
    else
        pb_set_u32(&row, COL_D, (uint32_t)i);
    pb_set_u16(&row, COL_E, (uint16_t)i);
    return pb_row_commit(&row);
}

static void *work(void *arg)
{
    struct job *j = arg;
    double start = now(), cpu_start = read_clock(CLOCK_THREAD_CPUTIME_ID);

    /* The same loop twice, so that the compiler specializes each. */
    if (j->strings) {
        for (long i = 0; i < j->rows; i++)
            j->failed += append(j->table, true, i, (unsigned)i & (NAMES - 1)) < 0;
    } else {
        for (long i = 0; i < j->rows; i++)
            j->failed += append(j->table, false, i, 0) < 0;
    }
    j->seconds = now() - start;
    j->cpu_seconds = read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu_start;
    return NULL;
}

static uint32_t wake; /* set by the arena when few segments are ready */

/* Like the agent's resident thread: sleeps until few segments are ready. */
static void *tend(void *arg)
{
    struct pb_arena *a = arg;
    const struct timespec pause = {.tv_nsec = 100000000};
    long calls = 0, made = 0;
    uint32_t seen = 0;

    for (; !atomic_load(&stopping); calls++) {
        syscall(SYS_futex, &wake, FUTEX_WAIT_PRIVATE, seen, &pause, NULL, 0);
        seen = __atomic_load_n(&wake, __ATOMIC_SEQ_CST);
        int n = pb_arena_tend(a);
        made += n > 0 ? n : 0;
    }
    double us = read_clock(CLOCK_THREAD_CPUTIME_ID) * 1e6;
    printf("%-44s %.1f us of CPU each, %ld in %ld calls\n", "segments made ready by the tending thread",
           made ? us / (double)made : 0, made, calls);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_count(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, REPEATS, sizeof(*v), by_value);
    return v[REPEATS / 2];
}

static void report(const char *what, const char *unit, double *v)
{
    double mid = median(v);
    printf("%-44s min %7.2f  median %7.2f  max %7.2f %s\n", what, v[0], mid, v[REPEATS - 1], unit);
}

/* Over n threads at once. */
static struct rate rate(struct pb_table *t, bool strings, int n)
{
    struct job jobs[2] = {0};
    pthread_t threads[2];
    struct rate sum = {0};

    for (int i = 0; i < n; i++) {
        jobs[i] = (struct job){.table = t, .strings = strings, .rows = ROWS};
        pthread_create(&threads[i], NULL, work, &jobs[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        sum.wall += (double)jobs[i].rows / jobs[i].seconds * 1e-6;
        sum.cpu += (double)jobs[i].rows / jobs[i].cpu_seconds * 1e-6;
        if (jobs[i].failed)
            printf("%ld appends failed\n", jobs[i].failed);
    }
    return sum;
}

static double clock_cost(void)
{
    double start = now();
    for (int i = 0; i < 2000000; i++)
        (void)now();
    return (now() - start) * 1e9 / 2000000;
}

static void latencies(struct pb_table *t, bool strings)
{
    uint32_t *v = calloc(LATENCIES, sizeof(*v));
    struct timespec a, b;

    for (long i = 0; i < LATENCIES; i++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        append(t, strings, i, (unsigned)i & (NAMES - 1));
        clock_gettime(CLOCK_MONOTONIC, &b);
        v[i] = (uint32_t)((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec);
    }
    qsort(v, LATENCIES, sizeof(*v), by_count);
    printf("%-44s p50 %u  p99 %u  p99.9 %u  max %u ns (with one clock read to measure)\n",
           strings ? "append latency, with a string" : "append latency, with a u32", v[LATENCIES / 2],
           v[LATENCIES / 100 * 99], v[LATENCIES / 1000 * 999], v[LATENCIES - 1]);
    free(v);
}

/* Reads every segment of the table, as a query over all of it would. */
static void read_back(struct pb_arena *a, const char *table)
{
    struct pb_reader *r;
    double rates[REPEATS];
    char line[64];

    if (pb_reader_open(pb_arena_fd(a), &r, NULL) < 0)
        return;
    int t = pb_reader_find(r, table);
    for (int i = 0; i < REPEATS && t >= 0; i++) {
        struct pb_segment_info *list = NULL;
        struct pb_view v = {0};
        long rows = 0;
        double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
        int n = pb_reader_segments(r, (unsigned)t, &list);
        for (int k = 0; k < n; k++)
            if (pb_view_load(r, &list[k], &v) == 0)
                rows += v.nrows;
        rates[i] = (double)rows / (read_clock(CLOCK_THREAD_CPUTIME_ID) - start) * 1e-6;
        pb_view_done(&v);
        free(list);
    }
    snprintf(line, sizeof(line), "rows read back, table %s, by CPU time", table);
    report(line, "M/s", rates);
    pb_reader_close(r);
}

static struct pb_table *make_table(struct pb_arena *a, const char *name, enum pb_type fourth)
{
    const struct pb_column columns[] = {{.name = "timestamp", .type = PB_TIMESTAMP},
                                        {.name = "a", .type = PB_U64},
                                        {.name = "b", .type = PB_I32},
                                        {.name = "c", .type = PB_F64},
                                        {.name = "d", .type = fourth},
                                        {.name = "e", .type = PB_U16}};
    struct pb_table *t = NULL;
    int r = pb_table_new(
        a, &(struct pb_table_spec){.name = name, .columns = columns, .ncolumns = 6, .share = 64}, &t);
    if (r < 0) {
        fprintf(stderr, "bench: table %s: %s\n", name, strerror(-r));
        exit(1);
    }
    return t;
}

enum { ONE, ONE_STRING, TWO, TWO_STRINGS, VARIANTS };

static void run(struct pb_arena *a)
{
    static const char *const what[VARIANTS] = {"1 thread, u32 column", "1 thread, string column",
                                               "2 threads together, u32 column",
                                               "2 threads together, string column"};
    struct pb_table *plain = make_table(a, "plain", PB_U32), *text = make_table(a, "text", PB_STRING);
    double wall[VARIANTS][REPEATS], cpu[VARIANTS][REPEATS], extra[REPEATS], tick[REPEATS];
    char line[64];

    for (int i = 0; i < REPEATS; i++) {
        tick[i] = clock_cost();
        for (int v = 0; v < VARIANTS; v++) {
            bool strings = v == ONE_STRING || v == TWO_STRINGS;
            struct rate r = rate(strings ? text : plain, strings, v >= TWO ? 2 : 1);
            wall[v][i] = r.wall;
            cpu[v][i] = r.cpu;
        }
        extra[i] = 1000 / cpu[ONE_STRING][i] - 1000 / cpu[ONE][i];
    }
    report("clock_gettime", "ns", tick);
    for (int v = 0; v < VARIANTS; v++) {
        snprintf(line, sizeof(line), "appends, %s", what[v]);
        report(line, "M/s", wall[v]);
        report("  the same by CPU time", "M/s", cpu[v]);
    }
    report("string in the dictionary over a u32", "ns", extra);
    latencies(plain, false);
    latencies(text, true);
    read_back(a, "plain");
    read_back(a, "text");
}

/* --- the copy in a file ---------------------------------------------------------------------------- */

struct copying {
    struct pb_arena *arena;
    atomic_bool stop;
    double cpu;
    long turns, capped;
};

/* Like the agent's resident thread: the next copy after 150 ms, or 20 ms where there is more. */
static void *copy(void *arg)
{
    struct copying *c = arg;
    double start = read_clock(CLOCK_THREAD_CPUTIME_ID);

    for (; !atomic_load(&c->stop); c->turns++) {
        int r = pb_arena_mirror(c->arena);
        c->capped += r > 0;
        nanosleep(&(struct timespec){.tv_nsec = r > 0 ? 20000000 : 150000000}, NULL);
    }
    c->cpu = read_clock(CLOCK_THREAD_CPUTIME_ID) - start;
    return NULL;
}

/* One thread appends that many rows a second (0: as many as it can) for some seconds. */
static void copied(struct pb_arena *a, struct pb_table *t, const char *what, long rate)
{
    enum { SECONDS = 3 };
    struct copying c = {.arena = a};
    pthread_t thread;
    long n = 0;

    pthread_create(&thread, NULL, copy, &c);
    double start = now(), cpu_start = read_clock(CLOCK_THREAD_CPUTIME_ID), passed = 0;
    for (; passed < SECONDS; passed = now() - start) {
        long due = rate ? (long)(passed * (double)rate) : n + 10000;
        for (; n < due; n++)
            append(t, true, n, (unsigned)n & (NAMES - 1));
        if (rate)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    double cpu = read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu_start;
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    printf("%-44s %.3f%% of a CPU for the copy, %ld turns, %ld of them not enough; %.1f ns a row\n", what,
           c.cpu / SECONDS * 100, c.turns, c.capped, n ? cpu * 1e9 / (double)n : 0);
}

static void run_copied(void)
{
    char dir[] = "/dev/shm/bench-arena-XXXXXX";
    struct pb_arena *a;

    if (!mkdtemp(dir))
        return;
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    if (pb_arena_create(fd, "arena", &(struct pb_arena_options){.bound = 128 << 20}, &a) == 0) {
        struct pb_table *t = make_table(a, "copied", PB_STRING);
        copied(a, t, "copied, 1 row a second", 1);
        copied(a, t, "copied, 1,000,000 rows a second", 1000000);
        copied(a, t, "copied, as many rows as one thread writes", 0);
        pb_arena_close(a);
    }
    unlinkat(fd, "arena", 0);
    close(fd);
    rmdir(dir);
}

int main(void)
{
    struct pb_arena *a;
    pthread_t tender;

    for (int i = 0; i < NAMES; i++)
        lengths[i] = (size_t)snprintf(names[i], sizeof(names[i]), "aten::operator_%d", i * 37);
    int r = pb_arena_create(PB_ARENA_MEMFD, "bench", &(struct pb_arena_options){.wake = &wake}, &a);
    if (r < 0) {
        fprintf(stderr, "bench: cannot make an arena: %s\n", strerror(-r));
        return 1;
    }
    pthread_create(&tender, NULL, tend, a);
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL); /* like an agent that has been running for a while */
    printf("rows' clock: %s\n", pb_clock_is_counter() ? "the processor's counter" : "clock_gettime");
    run(a);
    atomic_store(&stopping, true);
    pthread_join(tender, NULL);
    pb_arena_close(a);
    run_copied();
    return 0;
}
