/* Many queries at once, and queries under a writer at full speed: all are answered, and each sees a suffix of
 * what was written, whole rows only. */
#include "engine_test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

/* A sanitizer makes the writer tens of times slower, and many loops beside it more so. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || TEST_SLOWNESS > 1
enum { WRITTEN = 20000 };
#else
enum { WRITTEN = 1000000 };
#endif
enum { LOOPS = 8, SECONDS = 3, CROWD = 100 };

static struct pb_arena *arena;
static struct pb_table *table;
static atomic_bool stop;
static atomic_long written;

/* A small arena: it is recycled many times a second. */
static int make_arena(void **state)
{
    return make_stream_arena(state, 4 << 20, &arena, &table);
}

static void *write_on(void *arg)
{
    for (int64_t n = written; !stop; n++) {
        struct pb_row row;
        char name[32];
        /* A row that finds no room would be a gap that is the writer's. */
        while (pb_row_begin(table, &row) < 0)
            ;
        pb_set_i64(&row, 1, n);
        pb_set_i64(&row, 2, n * 31 + 7);
        pb_set_string(&row, 3, name, (size_t)snprintf(name, sizeof(name), "name-%d", (int)(n % 17)));
        pb_row_commit(&row);
        written++;
    }
    return NULL;
}

/* Counts rows, gaps, rows whose cells do not belong together, and once more in a second scan. Exit status: 0
 * good, 1 wrong, 2 nothing asked. */
static int query_on(void)
{
    static const char sql[] = "SELECT count(*), max(n) - min(n) + 1, count(*) FILTER (WHERE proof <> n * 31 "
                              "+ 7 OR name <> 'name-' || (n % 17)), "
                              "max(n), (SELECT count(*) FROM stream WHERE proof > n) FROM stream";
    struct timespec t;
    long long before = -1;
    int asked = 0;

    clock_gettime(CLOCK_MONOTONIC, &t);
    for (time_t end = t.tv_sec + SECONDS; t.tv_sec < end; clock_gettime(CLOCK_MONOTONIC, &t), asked++) {
        long long count, span, wrong, last, again;
        struct answer *a = ask(pb_arena_fd(arena), sql);
        if (a->r < 0 ||
            sscanf(a->rows, "%lld|%lld|%lld|%lld|%lld", &count, &span, &wrong, &last, &again) != 5) {
            fprintf(stderr, "query failed: %s %s\n", a->err.text, a->rows);
            return 1;
        }
        if (count != span || count != again || wrong != 0 || last < before) {
            fprintf(stderr, "not a suffix: %s (before: %lld)\n", a->rows, before);
            return 1;
        }
        before = last;
    }
    return asked > 0 ? 0 : 2;
}

/* The scan begins long after the snapshot was taken: the writer has recycled all of it by then. */
static void a_slow_query_is_overtaken_and_sees_a_suffix_all_the_same(void **state)
{
    static const char sql[] =
        "SELECT count(*), max(n) - min(n) + 1, count(*) FILTER (WHERE proof <> n * 31 + 7) FROM "
        "stream, (SELECT count(*) c FROM range(100000000)) WHERE c > 0";
    long long count, span, wrong;
    pthread_t writer;

    stop = false;
    assert_int_equal(pthread_create(&writer, NULL, write_on, NULL), 0);
    struct answer *a = ask(pb_arena_fd(arena), sql);
    stop = true;
    pthread_join(writer, NULL);
    assert_int_equal(a->r, 0);
    assert_int_equal(sscanf(a->rows, "%lld|%lld|%lld", &count, &span, &wrong), 3);
    if (count == 0 || count != span || wrong)
        print_error("not a suffix: %s\n", a->rows);
    assert_true(count > 0 && count == span && wrong == 0);
    assert_true(a->stats.reruns > 0);
    /* Without a writer no statement runs twice. */
    a = ask(pb_arena_fd(arena), sql);
    assert_int_equal(a->r, 0);
    assert_int_equal(a->stats.reruns, 0);
}

static void every_result_under_a_writer_is_a_suffix(void **state)
{
    pid_t pids[LOOPS];
    pthread_t writer;
    int status;

    for (int i = 0; i < LOOPS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            usleep(100000);
            _exit(query_on());
        }
    }
    assert_int_equal(pthread_create(&writer, NULL, write_on, NULL), 0);
    int wrong = 0;
    for (int i = 0; i < LOOPS; i++) {
        waitpid(pids[i], &status, 0);
        wrong += status != 0;
    }
    stop = true;
    pthread_join(writer, NULL);
    assert_int_equal(wrong, 0);
    /* It was written to all the while, many times over what the arena holds. */
    assert_true(written > WRITTEN);
}

static void a_hundred_queries_beside_a_slow_one_are_all_answered(void **state)
{
    pid_t pids[CROWD], slow;
    int status;

    slow = fork();
    if (slow == 0) {
        int none = -1;
        ask_all(&none, 1, "SELECT count(*) FROM range(100000000000)", 0);
        _exit(1);
    }
    for (int i = 0; i < CROWD; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct answer *a = ask(-1, "SELECT sum(range) FROM range(100000)");
            bool good = a->r == 0 && strcmp(a->rows, "4999950000\n") == 0;
            if (!good)
                fprintf(stderr, "query %d: %d %s %s\n", i, a->r, a->err.text, a->rows);
            _exit(good ? 0 : 1);
        }
    }
    int wrong = 0;
    for (int i = 0; i < CROWD; i++) {
        waitpid(pids[i], &status, 0);
        wrong += status != 0;
    }
    pid_t ended = waitpid(slow, &status, WNOHANG);
    kill(slow, SIGKILL);
    waitpid(slow, &status, 0);
    assert_int_equal(wrong, 0);
    assert_int_equal(ended, 0); /* it was there all the while */
}

/* Workers there are now, in this test's directory. */
static int count_workers(void)
{
    char command[600];
    snprintf(command, sizeof(command), "ls %s/probing | grep -c '^sql-[0-9]*-'", getenv("XDG_RUNTIME_DIR"));
    FILE *p = popen(command, "r");
    int n = -1;
    if (!p || fscanf(p, "%d", &n) != 1)
        n = -1;
    if (p)
        pclose(p);
    return n;
}

static void there_are_never_more_workers_than_the_bound(void **state)
{
    int n = count_workers();
    assert_true(n >= 1 && n <= 8);
}

static void a_long_query_does_not_hold_up_another(void **state)
{
    pid_t pid = fork();
    if (pid == 0) {
        int none = -1;
        ask_all(&none, 1, "SELECT count(*) FROM range(100000000000)", 5000 * TEST_SLOWNESS);
        _exit(0);
    }
    usleep(200000);
    int64_t began = mono_now();
    expect(-1, "SELECT 1", "1\n");
    assert_true(mono_now() - began < 3 * SECOND * TEST_SLOWNESS);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    /* Its worker notices that the caller is gone. */
    expect(-1, "SELECT 2", "2\n");
}

static void a_deadline_is_kept(void **state)
{
    int none = -1;

    int64_t began = mono_now();
    struct answer *a = ask_all(&none, 1, "SELECT count(*) FROM range(100000000000)", 300);
    assert_true(a->r < 0);
    assert_non_null(strstr(a->err.text, "longer than 0.3 s"));
    assert_true(mono_now() - began < 4 * SECOND * TEST_SLOWNESS);
    expect(-1, "SELECT 1", "1\n");
}

static volatile sig_atomic_t cancelled;

static void cancel(int number)
{
    cancelled = 1;
}

/* A query that would take for ever, over the table of this test. */
static int run_for_ever(struct answer *a, struct pb_err *err)
{
    static const char sql[] = "SELECT count(*) FROM stream, range(1000000000000) WHERE n + range < 0";
    const struct pb_sql_source source = {.live = {.pid = getpid(), .arena_fd = pb_arena_fd(arena)}};
    const struct pb_sql_query q = {.sql = sql,
                                   .length = sizeof(sql) - 1,
                                   .sources = &source,
                                   .nsources = 1,
                                   .progress = true,
                                   .cancel = {.flag = &cancelled}};

    *a = (struct answer){0};
    return take_all(&q, a, err);
}

static void a_query_tells_how_far_it_is_and_is_cancelled_at_once(void **state)
{
    const struct itimerval second = {.it_value = {.tv_sec = 1}};
    static struct answer a;
    struct pb_err err = {0};

    sigaction(SIGALRM, &(struct sigaction){.sa_handler = cancel}, NULL);
    setitimer(ITIMER_REAL, &second, NULL);
    int64_t began = mono_now();
    assert_int_equal(run_for_ever(&a, &err), -ECANCELED);
    assert_true(mono_now() - began < 2 * SECOND * TEST_SLOWNESS);
    assert_true(a.known > 0 && a.scanned <= a.known);
    cancelled = 0;
    expect(-1, "SELECT 1", "1\n");
}

static void a_query_cancelled_before_it_begins_does_not_run(void **state)
{
    static struct answer a;
    struct pb_err err = {0};

    cancelled = 1;
    assert_int_equal(run_for_ever(&a, &err), -ECANCELED);
    cancelled = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_result_under_a_writer_is_a_suffix),
        cmocka_unit_test(a_slow_query_is_overtaken_and_sees_a_suffix_all_the_same),
        cmocka_unit_test(a_hundred_queries_beside_a_slow_one_are_all_answered),
        cmocka_unit_test(there_are_never_more_workers_than_the_bound),
        cmocka_unit_test(a_long_query_does_not_hold_up_another),
        cmocka_unit_test(a_deadline_is_kept),
        cmocka_unit_test(a_query_tells_how_far_it_is_and_is_cancelled_at_once),
        cmocka_unit_test(a_query_cancelled_before_it_begins_does_not_run),
    };
    return cmocka_run_group_tests(tests, make_arena, remove_own_directory);
}
