/* Many threads append at once, interrupted by signal handlers that append too, wherever the signal finds
 * them: in an append, a roll, a dictionary insert. Nothing is lost, nothing is torn, nothing is there twice.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "table_test.h"

#if TEST_SANITIZED
/* With less between two signals the threads would do nothing but handle them. */
enum { ROWS = 20000, EVERY_NS = 50000 };
#else
enum { ROWS = 100000, EVERY_NS = 20000 };
#endif
enum { THREADS = 8, HANDLER = THREADS, WRITERS = THREADS + 1, MAX_HANDLED = 400000 };

static struct pb_table *table;
static struct pb_arena *arena;
static _Atomic uint64_t handled, handler_failed;
static atomic_int running;
static atomic_bool fill_cells;

static void on_signal(int sig)
{
    int saved = errno;
    /* A number is spent only on a row that went in: the set must have no gap. */
    static _Atomic uint64_t next;
    uint64_t number = atomic_fetch_add(&next, 1);

    if (number < MAX_HANDLED) {
        if (proof_append(table, HANDLER, number) < 0)
            atomic_fetch_add(&handler_failed, 1);
        atomic_fetch_add(&handled, 1);
    }
    errno = saved;
}

/* A timer that interrupts this thread again and again. */
static timer_t start_timer(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    const struct itimerspec often = {{.tv_nsec = EVERY_NS}, {.tv_nsec = EVERY_NS}};
    timer_t timer;

    event._sigev_un._tid = gettid();
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &often, NULL);
    return timer;
}

static void *append(void *arg)
{
    uint32_t writer = (uint32_t)(uintptr_t)arg;
    long failed = 0;
    timer_t timer = start_timer();

    for (uint64_t i = 0; i < ROWS; i++) {
        struct pb_row row;
        int r = proof_begin(table, writer, i, &row);
        if (r == 0)
            r = pb_row_commit(&row);
        failed += r < 0;
        if (r == 0 && atomic_load(&fill_cells)) {
            r = pb_fill_u64(arena, pb_row_ref(&row), PROOF_LATE, ~i);
            failed += r < 0 && r != -ESTALE;
        }
    }
    timer_delete(timer);
    atomic_fetch_sub(&running, 1);
    return (void *)failed;
}

static void set_handler(void (*fn)(int))
{
    struct sigaction sa = {.sa_handler = fn, .sa_flags = SA_RESTART};
    assert_int_equal(sigaction(SIGUSR1, &sa, NULL), 0);
}

/* Runs the threads; `meanwhile` is called again and again on the main thread. */
static void run(void (*meanwhile)(void))
{
    pthread_t threads[THREADS];
    void *failed;

    atomic_store(&running, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, append, (void *)i), 0);
    while (atomic_load(&running) > 0)
        meanwhile();
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &failed);
        assert_int_equal((long)failed, 0);
    }
}

struct census {
    unsigned char *seen[WRITERS];
    long wrong, twice, unfilled;
};

static void count_row(const struct pb_view *v, uint32_t row, void *arg)
{
    struct census *c = arg;

    if (!proof_holds(v, row)) {
        c->wrong++;
        return;
    }
    uint32_t writer = CELL(v, PROOF_WRITER, row, uint32_t);
    uint64_t number = CELL(v, PROOF_NUMBER, row, uint64_t);
    if (writer >= WRITERS || number >= (writer == HANDLER ? MAX_HANDLED : ROWS)) {
        c->wrong++;
        return;
    }
    c->twice += c->seen[writer][number];
    c->seen[writer][number] = 1;
    c->unfilled += writer != HANDLER && pb_view_is_null(v, PROOF_LATE, row);
}

static void make(uint64_t bound, uint32_t segment_size)
{
    struct pb_arena_options o = {.bound = bound, .segment_size = segment_size};
    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "test", &o, &arena), 0);
    assert_int_equal(proof_table(arena, "t", 1, &table), 0);
}

static void tend(void)
{
    const struct timespec pause = {.tv_nsec = 100000};
    pb_arena_tend(arena);
    nanosleep(&pause, NULL);
}

static void nothing_is_lost_and_nothing_torn(void **state)
{
    struct census c = {0};

    for (int i = 0; i < WRITERS; i++)
        c.seen[i] = calloc(1, MAX_HANDLED);
    make(UINT64_C(1) << 30, 4096);
    set_handler(on_signal);
    atomic_store(&fill_cells, true);
    run(tend);
    set_handler(SIG_IGN);

    long in_handlers = (long)atomic_load(&handled);
    long rows = each_row(pb_arena_fd(arena), "t", count_row, &c);
    print_message("%d threads, %ld rows, %ld of them appended inside handlers\n", THREADS, rows, in_handlers);
    assert_int_equal(c.wrong, 0);
    assert_int_equal(c.twice, 0);
    assert_int_equal(c.unfilled, 0);
    assert_int_equal(atomic_load(&handler_failed), 0);
    assert_true(in_handlers > 1000);
    assert_int_equal(rows, (long)THREADS * ROWS + in_handlers);
    for (int i = 0; i < WRITERS; i++)
        free(c.seen[i]);
    pb_arena_close(arena);
}

static long looked, wrong_looks;

static void check_row(const struct pb_view *v, uint32_t row, void *arg)
{
    looked++;
    wrong_looks += !proof_holds(v, row);
}

static void look(void)
{
    pb_arena_tend(arena);
    each_row(pb_arena_fd(arena), "t", check_row, NULL);
}

/* The bound is small and moves: segments are recycled, given back and grown under the reader. */
static void change_bound_and_look(void)
{
    static unsigned turn;
    pb_arena_set_bound(arena, 65536 + (turn++ % 5 + 8) * UINT64_C(65536));
    look();
}

static void a_reader_sees_whole_rows_while_segments_are_recycled(void **state)
{
    make(0, 4096);
    set_handler(on_signal);
    atomic_store(&fill_cells, true);
    run(change_bound_and_look);
    set_handler(SIG_IGN);
    look();
    print_message("%ld rows looked at while %d threads wrote\n", looked, THREADS);
    assert_true(looked > 1000);
    assert_int_equal(wrong_looks, 0);
    assert_true(pb_arena_tend(arena) >= 0);
    assert_true(pb_arena_used(arena) <= pb_arena_bound(arena));
    pb_arena_close(arena);
}

static void *append_few(void *arg)
{
    for (uint64_t i = 0; i < 200; i++)
        if (proof_append(table, 0, i) < 0)
            return arg;
    return NULL;
}

/* Slow threads stay in the shared segment once open segments become many: 160 threads must not take 160. */
static void many_threads_do_not_take_a_segment_each(void **state)
{
    enum { MANY = 160 };
    pthread_t threads[MANY];
    void *failed;
    struct pb_reader *r;
    struct pb_segment_info *list;
    int open = 0;

    make(UINT64_C(16) << 20, 65536);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, append_few, table), 0);
    for (int i = 0; i < MANY; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(each_row(pb_arena_fd(arena), "t", NULL, NULL), 200 * MANY);
    assert_int_equal(pb_reader_open(pb_arena_fd(arena), &r, NULL), 0);
    int n = pb_reader_segments(r, 0, &list);
    for (int i = 0; i < n; i++)
        open += list[i].open;
    assert_true(open <= 64);
    free(list);
    pb_reader_close(r);
    pb_arena_close(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_and_nothing_torn),
        cmocka_unit_test(a_reader_sees_whole_rows_while_segments_are_recycled),
        cmocka_unit_test(many_threads_do_not_take_a_segment_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
