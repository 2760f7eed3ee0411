/* An arena keeps within its bound and its tables within their shares; no room is an error, never a crash; a
 * child of fork leaves its parent's arena alone. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "table_test.h"

enum { SEGMENT = 4096, SLOTS = 32 };

static uint64_t bound_for(unsigned slots)
{
    /* The header of an arena with 128 tables takes 36 KB, a page of schemas more. */
    return 40960 + 4096 + (uint64_t)slots * SEGMENT;
}

static struct pb_arena *make(unsigned slots)
{
    struct pb_arena *a;
    struct pb_arena_options o = {.segment_size = SEGMENT, .bound = bound_for(slots), .schema_bytes = 4096};
    assert_int_equal(pb_arena_create(PB_ARENA_MEMFD, "test", &o, &a), 0);
    return a;
}

static uint64_t blocks(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void append_many(struct pb_table *t, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(proof_append(t, 1, i), 0);
}

struct range {
    uint64_t min, max;
    long wrong;
};

static void note_number(const struct pb_view *v, uint32_t row, void *arg)
{
    struct range *r = arg;
    uint64_t number = CELL(v, PROOF_NUMBER, row, uint64_t);
    r->wrong += !proof_holds(v, row);
    r->min = number < r->min ? number : r->min;
    r->max = number > r->max ? number : r->max;
}

static void the_oldest_rows_make_room_and_the_bound_holds(void **state)
{
    struct pb_arena *a = make(SLOTS);
    struct pb_table *t;
    struct range range = {.min = UINT64_MAX};

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    append_many(t, 20000);
    assert_true(pb_arena_used(a) <= bound_for(SLOTS));
    assert_true(blocks(pb_arena_fd(a)) <= bound_for(SLOTS));
    long rows = each_row(pb_arena_fd(a), "t", note_number, &range);
    assert_int_equal(range.wrong, 0);
    assert_int_equal(range.max, 19999);
    assert_int_equal(range.max - range.min + 1, rows);
    assert_true(rows > 500);
    pb_arena_close(a);
}

static void a_flood_in_one_table_leaves_the_share_of_another(void **state)
{
    struct pb_arena *a = make(SLOTS);
    struct pb_table *flood, *calm;
    struct range range = {.min = UINT64_MAX};

    assert_int_equal(proof_table(a, "flood", 2, &flood), 0);
    assert_int_equal(proof_table(a, "calm", 8, &calm), 0);
    append_many(calm, 100);
    append_many(flood, 20000);
    assert_int_equal(each_row(pb_arena_fd(a), "calm", note_number, &range), 100);
    /* And the calm one gets room back as it asks for it, up to its share and beyond what the other needs. */
    append_many(calm, 150);
    for (uint64_t i = 0; i < 20000; i++) {
        assert_int_equal(proof_append(flood, 1, i), 0);
        if (i % 2000 == 0)
            assert_int_equal(proof_append(calm, 1, i), 0);
    }
    assert_true(each_row(pb_arena_fd(a), "calm", NULL, NULL) >= 100);
    assert_true(pb_arena_used(a) <= bound_for(SLOTS));
    pb_arena_close(a);
}

static void a_lowered_bound_gives_space_back_and_a_raised_one_is_used(void **state)
{
    struct pb_arena *a = make(SLOTS);
    struct pb_table *t;
    struct range range = {.min = UINT64_MAX};

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    append_many(t, 5000);
    pb_arena_set_bound(a, bound_for(6));
    assert_true(pb_arena_tend(a) >= 0);
    assert_true(pb_arena_used(a) <= bound_for(6));
    assert_true(blocks(pb_arena_fd(a)) <= bound_for(6));
    append_many(t, 5000);
    assert_true(pb_arena_used(a) <= bound_for(6));
    long few = each_row(pb_arena_fd(a), "t", note_number, &range);
    assert_true(few > 0 && range.wrong == 0);
    pb_arena_set_bound(a, bound_for(100));
    append_many(t, 20000);
    assert_true(pb_arena_used(a) > bound_for(90) && pb_arena_used(a) <= bound_for(100));
    long many = each_row(pb_arena_fd(a), "t", note_number, &range);
    assert_true(many > 10 * few && range.wrong == 0);
    pb_arena_close(a);
}

static int incomplete;

/* Row 0 lies in the segment of the row under way. */
static void expect_sealed_but_incomplete(const struct pb_view *v, uint32_t row, void *arg)
{
    incomplete += CELL(v, PROOF_NUMBER, row, uint64_t) == 0 && !v->complete;
}

static void a_row_under_way_keeps_its_segment(void **state)
{
    struct pb_arena *a = make(4);
    struct pb_table *t;
    struct pb_row row;
    struct range range = {.min = UINT64_MAX};

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_int_equal(proof_begin(t, 1, 1000000, &row), 0);
    append_many(t, 5000);
    each_row(pb_arena_fd(a), "t", expect_sealed_but_incomplete, NULL);
    assert_int_equal(incomplete, 1);
    assert_int_equal(pb_row_commit(&row), 0);
    each_row(pb_arena_fd(a), "t", note_number, &range);
    assert_int_equal(range.max, 1000000);
    assert_int_equal(range.wrong, 0);
    pb_arena_close(a);
}

static void rows_that_find_no_room_are_counted(void **state)
{
    struct pb_arena *a = make(4);
    struct pb_table *t;
    struct pb_row rows[400];
    struct pb_reader *r;
    struct pb_table_info info;
    int n = 0, result = 0;

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    while (n < 400 && (result = proof_begin(t, 1, (uint64_t)n, &rows[n])) == 0)
        n++;
    assert_int_equal(result, -ENOBUFS);
    assert_int_equal(pb_row_begin(t, &rows[n]), -ENOBUFS);
    for (int i = 0; i < n; i++)
        assert_int_equal(pb_row_commit(&rows[i]), 0);
    assert_int_equal(each_row(pb_arena_fd(a), "t", NULL, NULL), n);
    assert_int_equal(proof_append(t, 1, 0), 0);
    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    assert_int_equal(pb_reader_table(r, 0, &info), 0);
    assert_int_equal(info.dropped, 2);
    pb_reader_close(r);
    pb_arena_close(a);
}

static void tending_makes_segments_ready_within_the_bound(void **state)
{
    struct pb_arena *a = make(64);
    struct pb_table *t;

    assert_int_equal(proof_table(a, "t", 1, &t), 0);
    assert_true(pb_arena_tend(a) > 0);
    assert_int_equal(pb_arena_tend(a), 0);
    for (int i = 0; i < 200; i++) {
        append_many(t, 100);
        assert_true(pb_arena_tend(a) >= 0);
        assert_true(pb_arena_used(a) <= bound_for(64));
    }
    assert_true(each_row(pb_arena_fd(a), "t", NULL, NULL) > 1000);
    pb_arena_close(a);
}

static bool has_open_segment(struct pb_arena *a, const char *name)
{
    struct pb_reader *r;
    struct pb_segment_info *list = NULL;

    assert_int_equal(pb_reader_open(pb_arena_fd(a), &r, NULL), 0);
    int n = pb_reader_segments(r, (unsigned)pb_reader_find(r, name), &list);
    bool open = n > 0 && list[0].open;
    free(list);
    pb_reader_close(r);
    return open;
}

static void what_an_idle_thread_left_open_is_sealed_in_time(void **state)
{
    struct pb_arena *a = make(32);
    struct pb_table *idle, *busy;

    assert_int_equal(proof_table(a, "idle", 1, &idle), 0);
    assert_int_equal(proof_table(a, "busy", 1, &busy), 0);
    append_many(idle, 1);
    append_many(busy, 1);
    assert_true(pb_arena_tend(a) >= 0);
    assert_true(has_open_segment(a, "idle"));
    append_many(busy, 50000);
    assert_true(pb_arena_tend(a) >= 0);
    assert_false(has_open_segment(a, "idle"));
    append_many(idle, 1);
    assert_int_equal(each_row(pb_arena_fd(a), "idle", NULL, NULL), 2);
    pb_arena_close(a);
}

/* In a child, because a limit or a signal concerns the whole process. Returns its exit status. */
static int in_child(int (*fn)(void *), void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(fn(arg));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* 0: rows went on after the memory could not grow, or the copy in dirfd; another number says at which step
 * they did not. */
static int fill_up(int dirfd)
{
    struct pb_arena *a;
    struct pb_table *t;
    struct range range = {.min = UINT64_MAX};
    struct pb_arena_options o = {.segment_size = 65536, .bound = UINT64_C(1) << 30, .schema_bytes = 4096};
    bool refused = false;

    if (pb_arena_create(dirfd, "arena", &o, &a) < 0)
        return 1;
    if (proof_table(a, "t", 1, &t) < 0)
        return 2;
    for (uint64_t i = 0; i < 200000; i++) {
        if (proof_append(t, 1, i) < 0)
            return 3;
        if (i % 5000 == 0) {
            int r = pb_arena_mirror(a);
            refused |= r == -ENOSPC || r == -EFBIG;
        }
    }
    if (dirfd == PB_ARENA_MEMFD && pb_arena_used(a) > UINT64_C(4) << 20)
        return 4;
    if (dirfd != PB_ARENA_MEMFD && (!refused || pb_arena_mirror_error(a) == 0))
        return 5;
    return each_row(pb_arena_fd(a), "t", note_number, &range) > 10000 && !range.wrong && range.max == 199999
               ? 0
               : 6;
}

static int under_a_file_size_limit(void *arg)
{
    struct rlimit limit = {2 << 20, 2 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    return fill_up(PB_ARENA_MEMFD);
}

static void a_file_size_limit_neither_kills_nor_stops_the_rows(void **state)
{
    assert_int_equal(in_child(under_a_file_size_limit, NULL), 0);
}

/* What of the copy got there is right, and is still there. */
static int on_a_full_disk(void *arg)
{
    struct range range = {.min = UINT64_MAX};
    int dirfd = open(arg, O_RDONLY | O_DIRECTORY), r = dirfd < 0 ? 99 : fill_up(dirfd);

    if (r)
        return r;
    int fd = openat(dirfd, "arena", O_RDONLY);
    return each_row(fd, "t", note_number, &range) > 1000 && !range.wrong ? 0 : 7;
}

/* The rows do without the copy, and the copy comes when there is room. */
static int with_no_room_at_all(void *arg)
{
    int dirfd = open(arg, O_RDONLY | O_DIRECTORY), big = openat(dirfd, "big", O_RDWR | O_CREAT, 0600);
    struct pb_arena *a;
    struct pb_table *t;

    if (fallocate(big, 0, 0, 2 << 20) < 0 || pb_arena_create(dirfd, "none", NULL, &a) < 0)
        return 1;
    if (pb_arena_mirror_error(a) != -ENOSPC || proof_table(a, "t", 1, &t) < 0 || proof_append(t, 1, 0) < 0)
        return 2;
    unlinkat(dirfd, "big", 0);
    close(big);
    int fd = openat(dirfd, "none", O_RDONLY);
    for (int i = 0; i < 100 && pb_arena_mirror(a) != 0; i++)
        usleep(50000);
    int r = each_row(fd, "t", NULL, NULL) == 1 && pb_arena_mirror_error(a) == 0 ? 0 : 3;
    unlinkat(dirfd, "none", 0);
    return r;
}

static void a_full_disk_neither_kills_nor_stops_the_rows(void **state)
{
    char dir[] = "/tmp/pb-full-XXXXXX";

    assert_non_null(mkdtemp(dir));
    if (mount("tmpfs", dir, "tmpfs", 0, "size=2m") < 0) {
        rmdir(dir);
        print_message("needs the right to mount a tmpfs of 2 MB\n");
        skip();
    }
    int none = in_child(with_no_room_at_all, dir), full = in_child(on_a_full_disk, dir);
    umount(dir);
    rmdir(dir);
    assert_int_equal(none, 0);
    assert_int_equal(full, 0);
}

struct inherited {
    struct pb_arena *arena;
    struct pb_table *table;
    struct pb_row_ref ref;
};

static int append_in_child(void *arg)
{
    struct inherited *in = arg;
    struct pb_row row;
    struct pb_table *t;

    if (pb_row_begin(in->table, &row) != -ESHUTDOWN)
        return 1;
    if (pb_fill_u64(in->arena, in->ref, PROOF_LATE, 1) != -ESHUTDOWN)
        return 2;
    if (pb_arena_tend(in->arena) != -ESHUTDOWN || proof_table(in->arena, "new", 1, &t) != -ESHUTDOWN)
        return 3;
    pb_arena_set_bound(in->arena, 1);
    pb_arena_after_fork_in_child(in->arena);
    pb_arena_close(in->arena);
    return 0;
}

static void a_child_of_fork_cannot_write(void **state)
{
    struct pb_arena *a = make(SLOTS);
    struct inherited in = {.arena = a};
    struct pb_row row;

    assert_int_equal(proof_table(a, "t", 1, &in.table), 0);
    append_many(in.table, 200);
    assert_int_equal(proof_begin(in.table, 1, 200, &row), 0);
    assert_int_equal(pb_row_commit(&row), 0);
    in.ref = pb_row_ref(&row);
    assert_int_equal(in_child(append_in_child, &in), 0);
    assert_int_equal(pb_arena_bound(a), bound_for(SLOTS));
    assert_int_equal(proof_append(in.table, 1, 201), 0);
    assert_int_equal(each_row(pb_arena_fd(a), "t", NULL, NULL), 202);
    assert_int_equal(pb_fill_u64(a, in.ref, PROOF_LATE, ~UINT64_C(200)), 0);
    pb_arena_close(a);
}

static void a_file_is_made_once_and_kept_private(void **state)
{
    char dir[] = "/tmp/pb-arena-XXXXXX";
    struct pb_arena *a, *b;
    struct stat st;

    assert_non_null(mkdtemp(dir));
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(pb_arena_create(dirfd, "arena", NULL, &a), 0);
    assert_int_equal(pb_arena_create(dirfd, "arena", NULL, &b), -EEXIST);
    assert_int_equal(fstatat(dirfd, "arena", &st, 0), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0600);
    assert_true(fcntl(pb_arena_fd(a), F_GETFD) & FD_CLOEXEC);
    pb_arena_close(a);
    unlinkat(dirfd, "arena", 0);
    close(dirfd);
    rmdir(dir);
}

static void the_place_is_chosen_by_what_is_free(void **state)
{
    struct pb_copy_place place;
    char dir[] = "/tmp/pb-place-XXXXXX";

    assert_non_null(mkdtemp(dir));
    pb_arena_place("/nonexistent", "/nonexistent", 64 << 20, &place);
    assert_int_equal(place.kind, PB_PLACE_MEMFD);
    assert_int_equal(place.bound, 64 << 20);
    pb_arena_place("/nonexistent", dir, 64 << 20, &place);
    assert_int_equal(place.kind, PB_PLACE_RUN_DIR);
    if (mount("tmpfs", dir, "tmpfs", 0, "size=64m") == 0) {
        /* As in a container: shared memory of 64 MB is not ours, a run directory of 64 MB is half ours. */
        pb_arena_place(dir, NULL, 64 << 20, &place);
        assert_int_equal(place.kind, PB_PLACE_MEMFD);
        pb_arena_place("/nonexistent", dir, 64 << 20, &place);
        assert_int_equal(place.kind, PB_PLACE_RUN_DIR);
        assert_int_equal(place.bound, 32 << 20);
        umount(dir);
        assert_int_equal(mount("tmpfs", dir, "tmpfs", 0, "size=2g"), 0);
        pb_arena_place(dir, NULL, UINT64_C(1) << 30, &place);
        assert_int_equal(place.kind, PB_PLACE_SHM);
        assert_int_equal(place.bound, 64 << 20);
        umount(dir);
    }
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_rows_make_room_and_the_bound_holds),
        cmocka_unit_test(a_flood_in_one_table_leaves_the_share_of_another),
        cmocka_unit_test(a_lowered_bound_gives_space_back_and_a_raised_one_is_used),
        cmocka_unit_test(a_row_under_way_keeps_its_segment),
        cmocka_unit_test(rows_that_find_no_room_are_counted),
        cmocka_unit_test(tending_makes_segments_ready_within_the_bound),
        cmocka_unit_test(what_an_idle_thread_left_open_is_sealed_in_time),
        cmocka_unit_test(a_file_size_limit_neither_kills_nor_stops_the_rows),
        cmocka_unit_test(a_full_disk_neither_kills_nor_stops_the_rows),
        cmocka_unit_test(a_child_of_fork_cannot_write),
        cmocka_unit_test(a_file_is_made_once_and_kept_private),
        cmocka_unit_test(the_place_is_chosen_by_what_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
