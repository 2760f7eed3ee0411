/* Arenas that are retired and given back while threads append at full speed, fill cells and define tables,
 * and never hear of it but by -ESHUTDOWN: no crash, no row lost that was committed, none half written. And
 * what is left of such an arena: handles that fail softly for ever, and next to no memory. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "table_test.h"

/* In emulation the thread that reads the rows of a round is beside eight that append: fewer rows. */
#if TEST_SELDOM
enum { ROUNDS = 100, MOST_ROWS = TEST_SANITIZED ? 200000 : 4000 };
#else
enum { ROUNDS = 1000, MOST_ROWS = 200000 };
#endif
enum { THREADS = 8, KEPT = 1100 };

/* An arena and what went into it; never freed, since a thread may come back to it at any time. */
static struct round {
    struct pb_arena *arena;
    struct pb_table *table;
    _Atomic uint64_t committed;
} rounds[KEPT];
static _Atomic(struct round *) current;
static atomic_bool stopping;
static _Atomic long refused, failures;

static void *append(void *arg)
{
    uint32_t writer = (uint32_t)(uintptr_t)arg;
    struct pb_row row;

    for (uint64_t i = 0; !atomic_load(&stopping); i++) {
        struct round *r = atomic_load(&current);
        if (atomic_load(&r->committed) >
            MOST_ROWS) { /* the other thread waits for a core: nothing may be recycled */
            sched_yield();
            continue;
        }
        int status = proof_begin(r->table, writer, i, &row);
        if (status == 0) {
            status = pb_row_commit(&row);
            struct pb_row_ref ref = pb_row_ref(&row);
            if (status == 0) {
                atomic_fetch_add(&r->committed, 1);
                if (i % 7 == 0)
                    pb_fill_u64(r->arena, ref, PROOF_LATE, ~i);
            }
        }
        if (i % 1000 == 0)
            pb_table_grow(r->table, &(struct pb_column){.name = "more", .type = PB_I32});
        if (status == -ESHUTDOWN)
            atomic_fetch_add(&refused, 1);
        else if (status < 0 && status != -ENOBUFS)
            atomic_fetch_add(&failures, 1);
        if (atomic_load(&refused) % 100 == 99) /* leave a core to the thread that retires */
            sched_yield();
    }
    return NULL;
}

static long wrong;

static void check_row(const struct pb_view *v, uint32_t row, void *arg)
{
    (void)arg;
    wrong += !proof_holds(v, row);
}

static void make_round(struct round *r)
{
    struct pb_arena_options o = {.bound = UINT64_C(256) << 20, .segment_size = 16384};

    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "test", &o, &r->arena), 0);
    assert_int_equal(proof_table(r->arena, "t", 1, &r->table), 0);
}

/* Gives it back as soon as it can be: at once, but for a thread that had to leave its core inside an append.
 */
static void release(struct pb_arena *a)
{
    const struct timespec pause = {.tv_nsec = 100000};
    time_t begun = time(NULL);

    while (!pb_arena_release(a)) {
        assert_true(time(NULL) - begun < 20 * TEST_SLOWNESS);
        nanosleep(&pause, NULL);
    }
}

static long read_kb(const char *name)
{
    char line[256];
    long kb = -1;

    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, name, strlen(name)) == 0)
            kb = strtol(line + strlen(name), NULL, 10);
    if (f)
        fclose(f);
    return kb;
}

static void arenas_go_while_threads_append(void **state)
{
    pthread_t threads[THREADS];
    long rows = 0;
    (void)state;

    make_round(&rounds[0]);
    atomic_store(&current, &rounds[0]);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, append, (void *)i), 0);
    long before_kb = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct round *r = &rounds[i];
        while (atomic_load(&r->committed) < 500)
            sched_yield();
        int fd = dup(pb_arena_fd(r->arena));
        pb_arena_retire(r->arena);
        release(r->arena);
        make_round(&rounds[i + 1]);
        atomic_store(&current, &rounds[i + 1]);
        /* Everything that was said to be committed is there, whole. Threads count after they commit. */
        long there = each_row(fd, "t", check_row, NULL);
        for (int tries = 0; (uint64_t)there > atomic_load(&r->committed) && tries < 100000; tries++)
            sched_yield();
        assert_int_equal(there, (long)atomic_load(&r->committed));
        rows += there;
        close(fd);
        if (i == ROUNDS / 10)
            before_kb = read_kb("VmRSS:");
    }
    atomic_store(&stopping, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    long grown_kb = read_kb("VmRSS:") - before_kb;
    print_message("%d arenas, %ld rows, %ld appends refused, %.1f kB left of each\n", ROUNDS, rows,
                  atomic_load(&refused), (double)grown_kb / (ROUNDS * 0.9));
    assert_int_equal(wrong, 0);
    assert_int_equal(atomic_load(&failures), 0);
    assert_true(rows >= ROUNDS * 500L);
    if (!TEST_SANITIZED)
        assert_true(grown_kb < ROUNDS * 64L);
    pb_arena_retire(rounds[ROUNDS].arena);
    release(rounds[ROUNDS].arena);
}

static void a_row_that_is_held_keeps_the_memory_and_can_be_committed(void **state)
{
    struct round r = {0};
    struct pb_row held, refused_row;
    (void)state;

    make_round(&r);
    assert_int_equal(proof_append(r.table, 1, 1), 0);
    struct pb_row_ref ref;
    assert_int_equal(proof_begin(r.table, 1, 2, &held), 0);
    ref = pb_row_ref(&held);
    int fd = dup(pb_arena_fd(r.arena));
    pb_arena_retire(r.arena);
    assert_int_equal(pb_arena_release(r.arena), 0);
    assert_int_equal(pb_row_begin(r.table, &refused_row), -ESHUTDOWN);
    assert_int_equal(each_row(fd, "t", check_row, NULL), 1);
    assert_int_equal(pb_row_commit(&held), 0);
    assert_int_equal(each_row(fd, "t", check_row, NULL), 2);
    assert_int_equal(wrong, 0);
    assert_int_equal(pb_arena_release(r.arena), 1);
    assert_int_equal(pb_arena_release(r.arena), 1);

    /* What is left fails softly, for ever. */
    struct pb_table *t;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(pb_row_begin(r.table, &refused_row), -ESHUTDOWN);
    assert_int_equal(pb_fill_u64(r.arena, ref, PROOF_LATE, ~UINT64_C(2)), -ESHUTDOWN);
    assert_int_equal(pb_table_grow(r.table, &(struct pb_column){.name = "more", .type = PB_I32}), -ESHUTDOWN);
    assert_int_equal(proof_table(r.arena, "other", 1, &t), -ESHUTDOWN);
    assert_null(pb_table_find(r.arena, "t"));
    assert_int_equal(pb_arena_tend(r.arena), -ESHUTDOWN);
    pid_t child = fork();
    if (child == 0)
        _exit(pb_row_begin(r.table, &refused_row) == -ESHUTDOWN ? 0 : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(each_row(fd, "t", check_row, NULL), 2); /* a reader that has the descriptor has it all */
    close(fd);
}

static void the_copy_is_whole_when_it_is_given_back(void **state)
{
    struct pb_arena_options o = {.bound = 4 << 20};
    char dir[] = "/tmp/table_retire.XXXXXX", path[64];
    struct pb_arena *a;
    struct pb_table *t;
    (void)state;

    assert_non_null(mkdtemp(dir));
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(pb_arena_create(dir_fd, "arena", &o, &a), 0);
    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    for (uint64_t i = 0; i < 5000; i++)
        assert_int_equal(proof_append(t, 3, i), 0);
    pb_arena_retire(a);
    release(a);
    int fd = openat(dir_fd, "arena", O_RDONLY);
    assert_int_equal(each_row(fd, "t", check_row, NULL), 5000);
    assert_int_equal(wrong, 0);
    close(fd);
    close(dir_fd);
    snprintf(path, sizeof(path), "%s/arena", dir);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_that_is_held_keeps_the_memory_and_can_be_committed),
        cmocka_unit_test(the_copy_is_whole_when_it_is_given_back),
        cmocka_unit_test(arenas_go_while_threads_append),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
