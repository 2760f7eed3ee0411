/* The copy of an arena in a file: whatever is done to the file while it is kept up, the writer goes on, and
 * what can be read there are whole rows. (table_kill.c and table_step.c kill the writer.) */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "table_test.h"

#if TEST_SANITIZED
enum { CUTS = 100, SLOWER = 10 };
#else
enum { CUTS = 1000, SLOWER = 1 };
#endif

struct kit {
    char dir[32];
    int dirfd;
    struct pb_arena *arena;
    struct pb_table *table;
    uint64_t written;
};

static void make(struct kit *k, uint64_t bound)
{
    const struct pb_arena_options o = {
        .bound = bound, .segment_size = 16384, .max_tables = 4, .schema_bytes = 8192};

    *k = (struct kit){.dir = "/tmp/pb-mirror-XXXXXX"};
    assert_non_null(mkdtemp(k->dir));
    k->dirfd = open(k->dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(pb_arena_create(k->dirfd, "arena", &o, &k->arena), 0);
    assert_int_equal(proof_table(k->arena, "t", 1, &k->table), 0);
}

static void unmake(struct kit *k)
{
    pb_arena_close(k->arena);
    unlinkat(k->dirfd, "arena", 0);
    close(k->dirfd);
    assert_int_equal(rmdir(k->dir), 0);
}

static void append(struct kit *k, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(proof_append(k->table, 1, k->written++), 0);
}

static void count_wrong(const struct pb_view *v, uint32_t row, void *arg)
{
    *(long *)arg += !proof_holds(v, row);
}

/* Rows in the file; -1: it is no arena now. */
static long rows_in_file(const struct kit *k)
{
    int fd = openat(k->dirfd, "arena", O_RDONLY);
    long wrong = 0, rows = each_row(fd, "t", count_wrong, &wrong);

    close(fd);
    assert_int_equal(wrong, 0);
    return rows;
}

static void the_copy_has_every_row_and_late_cell(void **state)
{
    struct kit k;
    struct pb_row row;
    struct pb_row_ref refs[100];
    const struct pb_column column = {.name = "more", .type = PB_STRING, .flags = PB_COL_LATE};
    struct pb_view v = {0};
    struct pb_reader *r;
    struct pb_segment_info *list = NULL;
    long seen = 0;

    make(&k, 4 << 20);
    int more = pb_table_grow(k.table, &column);
    assert_int_equal(more, PROOF_COLUMNS);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(proof_begin(k.table, 1, k.written++, &row), 0);
        assert_int_equal(pb_row_commit(&row), 0);
        refs[i] = pb_row_ref(&row);
    }
    assert_int_equal(pb_arena_mirror(k.arena), 0);
    for (int i = 0; i < 100; i++) {
        char text[32];
        int n = snprintf(text, sizeof(text), "late %d", i);
        assert_int_equal(pb_fill_string(k.arena, refs[i], (unsigned)more, text, (size_t)n), 0);
        if (i % 10 == 0)
            assert_int_equal(pb_arena_mirror(k.arena), 0);
    }
    assert_int_equal(pb_arena_mirror(k.arena), 0);
    int fd = openat(k.dirfd, "arena", O_RDONLY);
    assert_int_equal(pb_reader_open(fd, &r, NULL), 0);
    int n = pb_reader_segments(r, 0, &list);
    for (int s = 0; s < n; s++) {
        assert_int_equal(pb_view_load(r, &list[s], &v), 0);
        for (uint32_t i = 0; i < v.nrows; i++) {
            char text[32];
            int length = snprintf(text, sizeof(text), "late %d", (int)CELL(&v, PROOF_NUMBER, i, uint64_t));
            assert_false(pb_view_is_null(&v, (unsigned)more, i));
            struct pb_text got = v.strings[CELL(&v, more, i, uint16_t)];
            assert_int_equal(got.length, length);
            assert_memory_equal(got.data, text, (size_t)length);
            seen++;
        }
    }
    assert_int_equal(seen, 100);
    free(list);
    pb_view_done(&v);
    pb_reader_close(r);
    close(fd);
    unmake(&k);
}

static void what_is_recycled_goes_from_the_copy_too(void **state)
{
    struct kit k;
    struct stat st;

    make(&k, 1 << 20);
    for (int i = 0; i < 40; i++) {
        append(&k, 1000);
        assert_int_equal(pb_arena_mirror(k.arena), 0);
        assert_int_equal(rows_in_file(&k), each_row(pb_arena_fd(k.arena), "t", NULL, NULL));
    }
    pb_arena_set_bound(k.arena, 200000);
    assert_true(pb_arena_tend(k.arena) >= 0);
    assert_int_equal(pb_arena_mirror(k.arena), 0);
    assert_int_equal(rows_in_file(&k), each_row(pb_arena_fd(k.arena), "t", NULL, NULL));
    assert_int_equal(fstatat(k.dirfd, "arena", &st, 0), 0);
    assert_true(st.st_blocks * 512 <= 200000 + 16384);
    unmake(&k);
}

/* The memory cannot be cut, grown or written to through the descriptor that readers get, by none of its
 * names. */
static void the_memory_is_out_of_reach(void **state)
{
    struct kit k;
    char path[64], byte = 'x';

    make(&k, 1 << 20);
    append(&k, 10);
    int fd = pb_arena_fd(k.arena);
    assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_true(write(fd, &byte, 1) < 0 && ftruncate(fd, 0) < 0 && ftruncate(fd, INT64_C(1) << 50) < 0);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR); /* root may, whatever the mode says */
    assert_true(again >= 0 || errno == EACCES);
    assert_true(truncate(path, 0) < 0);
    if (again >= 0) {
        assert_true(ftruncate(again, 0) < 0);
        close(again);
    }
    append(&k, 1000);
    assert_int_equal(each_row(fd, "t", NULL, NULL), 1010);
    unmake(&k);
}

struct cutter {
    const struct kit *kit;
    atomic_bool stop;
    long cuts;
};

/* Cuts the file at some place, again and again. */
static void *cut(void *arg)
{
    struct cutter *c = arg;
    unsigned seed = 1;

    for (; c->cuts < CUTS && !atomic_load(&c->stop); c->cuts++) {
        int fd = openat(c->kit->dirfd, "arena", O_RDWR);
        if (ftruncate(fd, rand_r(&seed) % 3 ? rand_r(&seed) % 300000 : 0) < 0)
            abort();
        close(fd);
        usleep(rand_r(&seed) % 2000);
    }
    atomic_store(&c->stop, true);
    return NULL;
}

static void a_copy_that_is_cut_comes_back(void **state)
{
    struct kit k;
    struct cutter c = {.kit = &k};
    pthread_t thread;
    long again = 0;

    make(&k, 4 << 20);
    append(&k, 5000);
    pthread_create(&thread, NULL, cut, &c);
    while (!atomic_load(&c.stop)) {
        append(&k, 10);
        int r = pb_arena_mirror(k.arena);
        assert_true(r >= 0);
        again += r;
    }
    pthread_join(thread, NULL);
    print_message("%ld cuts, begun anew %ld times\n", c.cuts, again);
    while (pb_arena_mirror(k.arena) > 0)
        ;
    assert_true(again > 0);
    assert_int_equal(rows_in_file(&k), each_row(pb_arena_fd(k.arena), "t", NULL, NULL));
    unmake(&k);
}

/* As when a cut falls between two writes, the second of which makes the file as long as it was. */
static void a_copy_that_is_cut_and_lengthened_comes_back(void **state)
{
    struct kit k;
    struct stat st;

    make(&k, 4 << 20);
    append(&k, 5000);
    while (pb_arena_mirror(k.arena) > 0)
        ;
    int fd = openat(k.dirfd, "arena", O_RDWR);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(ftruncate(fd, st.st_size / 2), 0);
    assert_int_equal(ftruncate(fd, st.st_size), 0);
    close(fd);
    append(&k, 10);
    while (pb_arena_mirror(k.arena) > 0)
        ;
    assert_int_equal(rows_in_file(&k), 5010);
    unmake(&k);
}

static void a_copy_that_is_removed_is_given_up(void **state)
{
    struct kit k;

    make(&k, 1 << 20);
    append(&k, 100);
    assert_int_equal(pb_arena_mirror(k.arena), 0);
    assert_int_equal(unlinkat(k.dirfd, "arena", 0), 0);
    append(&k, 100);
    assert_int_equal(pb_arena_mirror(k.arena), -ENOENT);
    assert_int_equal(pb_arena_mirror_error(k.arena), -ENOENT);
    append(&k, 100);
    assert_int_equal(each_row(pb_arena_fd(k.arena), "t", NULL, NULL), 300);
    unmake(&k);
}

/* A program that closes what it does not know and opens its own files under those numbers. */
static void a_file_of_the_program_is_never_written_to(void **state)
{
    struct kit k;
    char name[] = "/tmp/pb-own-XXXXXX", path[64], link[128];
    struct stat st;
    int taken = 0;

    make(&k, 1 << 20);
    append(&k, 100);
    int own = mkstemp(name);
    assert_true(own >= 0);
    for (int fd = 3; fd < 2000; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        if (strstr(link, "pb-mirror-") && strstr(link, "/arena"))
            taken += dup2(own, fd) == fd;
        if (strstr(link, "memfd:arena"))
            taken += dup2(own, fd) == fd;
    }
    assert_int_equal(taken, 2);
    append(&k, 5000);
    assert_true(pb_arena_tend(k.arena) >= 0);
    assert_int_equal(pb_arena_mirror(k.arena), -EBADF);
    assert_int_equal(pb_arena_fd(k.arena), -1);
    append(&k, 5000);
    pb_arena_close(k.arena);
    assert_int_equal(fstat(own, &st), 0);
    assert_int_equal(st.st_size, 0);
    unlink(name);
    unlinkat(k.dirfd, "arena", 0);
    close(k.dirfd);
    rmdir(k.dir);
}

struct writers {
    struct kit *kit;
    atomic_bool stop;
    _Atomic uint64_t number;
};

static void *append_always(void *arg)
{
    struct writers *w = arg;

    while (!atomic_load(&w->stop)) {
        uint64_t number = atomic_fetch_add(&w->number, 1);
        struct pb_row row;
        if (proof_begin(w->kit->table, 1, number, &row) < 0 || pb_row_commit(&row) < 0)
            abort();
        if (number % 8 == 0)
            pb_fill_u64(w->kit->arena, pb_row_ref(&row), PROOF_LATE, ~number);
        if (number % 64 == 0)
            sched_yield();
    }
    return NULL;
}

static void *read_always(void *arg)
{
    struct writers *w = arg;
    long wrong = 0;
    int fd = openat(w->kit->dirfd, "arena", O_RDONLY);

    while (!atomic_load(&w->stop))
        each_row(fd, "t", count_wrong, &wrong);
    close(fd);
    return (void *)wrong;
}

static void a_reader_of_the_copy_sees_whole_rows_while_threads_write(void **state)
{
    struct kit k;
    struct writers w = {.kit = &k};
    pthread_t threads[3], reader;
    void *wrong;

    make(&k, 400000); /* much of it is recycled before it is copied */
    pthread_create(&reader, NULL, read_always, &w);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, append_always, &w);
    for (int i = 0; i < 1500 / SLOWER; i++) {
        assert_true(pb_arena_mirror(k.arena) >= 0);
        usleep(500);
    }
    atomic_store(&w.stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    pthread_join(reader, &wrong);
    assert_ptr_equal(wrong, NULL);
    while (pb_arena_mirror(k.arena) > 0)
        ;
    assert_int_equal(rows_in_file(&k), each_row(pb_arena_fd(k.arena), "t", NULL, NULL));
    print_message("%lu rows written\n", (unsigned long)atomic_load(&w.number));
    unmake(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_copy_has_every_row_and_late_cell),
        cmocka_unit_test(what_is_recycled_goes_from_the_copy_too),
        cmocka_unit_test(the_memory_is_out_of_reach),
        cmocka_unit_test(a_copy_that_is_cut_comes_back),
        cmocka_unit_test(a_copy_that_is_cut_and_lengthened_comes_back),
        cmocka_unit_test(a_copy_that_is_removed_is_given_up),
        cmocka_unit_test(a_file_of_the_program_is_never_written_to),
        cmocka_unit_test(a_reader_of_the_copy_sees_whole_rows_while_threads_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
