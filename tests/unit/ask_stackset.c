/* Sets of stacks: equal stacks once, ranks as ranges, sets that merge as if all had been added to one, bytes
 * that come back as they were, and 10,000 ranks in a second. */
#include <time.h>

#include "ask/stacks.h"
#include "ask/stackset.h"
#include "base/cleanup.h"

#include "slow.h"
#include "test.h"

#define THREADS 8
#define DEPTH   24

/* A process as pb_stacks_take leaves one: thread k is in function k, and the first thread of an odd rank
 * elsewhere. */
struct process {
    struct pb_stacks s;
    struct pb_shown_thread threads[THREADS];
    struct pb_shown_frame frames[THREADS][DEPTH];
    struct pb_py_code codes[THREADS][DEPTH];
    char names[THREADS][DEPTH][24];
};

static void make_process(struct process *p, int rank, bool odd)
{
    memset(p, 0, sizeof(*p));
    snprintf(p->s.label, sizeof(p->s.label), "rank %d", rank);
    p->s.pid = 1000 + rank;
    p->s.threads = p->threads;
    p->s.n = THREADS;
    for (int t = 0; t < THREADS; t++) {
        p->threads[t] = (struct pb_shown_thread){
            .native.tid = p->s.pid + t, .python = true, .frames = p->frames[t], .nframes = DEPTH};
        snprintf(p->threads[t].name, sizeof(p->threads[t].name), "thread %d", t);
        for (int d = 0; d < DEPTH; d++) {
            snprintf(p->names[t][d], sizeof(p->names[t][d]), "%s_%d_%d",
                     odd && t == 0 && d == 0 ? "odd" : "f", t, d);
            p->codes[t][d] =
                (struct pb_py_code){.qualname = p->names[t][d], .name = p->names[t][d], .file = "train.py"};
            p->frames[t][d] = (struct pb_shown_frame){.code = &p->codes[t][d], .line = d + 1};
        }
    }
}

static struct pb_stackset *set_of(int first, int n, int odd)
{
    struct pb_stackset *set;
    struct process *p = malloc(sizeof(*p));

    assert_non_null(p);
    assert_int_equal(pb_stackset_new(&set), 0);
    for (int rank = first; rank < first + n; rank++) {
        make_process(p, rank, rank == odd);
        assert_int_equal(pb_stackset_add(set, &p->s, rank), 0);
    }
    free(p);
    return set;
}

static void assert_same(struct pb_stackset *a, struct pb_stackset *b)
{
    assert_int_equal(pb_stackset_n(a), pb_stackset_n(b));
    assert_int_equal(pb_stackset_threads(a), pb_stackset_threads(b));
    assert_int_equal(pb_stackset_processes(a), pb_stackset_processes(b));
    for (size_t i = 0; i < pb_stackset_n(a); i++) {
        struct pb_set_stack x, y;
        pb_stackset_stack(a, i, &x);
        pb_stackset_stack(b, i, &y);
        assert_int_equal(x.id, y.id);
        assert_int_equal(x.threads, y.threads);
        assert_int_equal(x.processes, y.processes);
        assert_int_equal(x.nframes, y.nframes);
        assert_int_equal(x.nranks, y.nranks);
        assert_memory_equal(x.ranks, y.ranks, x.nranks * sizeof(*x.ranks));
        for (uint32_t k = 0; k < x.nframes; k++) {
            struct pb_set_frame f, g;
            pb_stackset_frame(a, x.frames[k], &f);
            pb_stackset_frame(b, y.frames[k], &g);
            assert_string_equal(f.function, g.function);
            assert_int_equal(f.line, g.line);
        }
    }
}

static void the_odd_rank_comes_first_and_the_others_are_one_stack(void **state)
{
    struct pb_stackset *set = set_of(0, 64, 17);
    struct pb_set_stack odd, most;
    struct pb_set_frame f;

    assert_int_equal(pb_stackset_n(set), THREADS + 1);
    pb_stackset_stack(set, 0, &odd);
    pb_stackset_frame(set, odd.frames[0], &f);
    assert_string_equal(f.function, "odd_0_0");
    assert_int_equal(odd.nranks, 1);
    assert_int_equal(odd.ranks[0].first, 17);
    assert_string_equal(odd.members[0].process, "rank 17");
    pb_stackset_stack(set, 1, &most); /* its thread in all other ranks */
    assert_int_equal(most.nranks, 2);
    assert_int_equal(most.ranks[0].last, 16);
    assert_int_equal(most.ranks[1].first, 18);
    assert_int_equal(most.threads, 63);
    pb_stackset_free(set);
}

/* As it travels. */
static int merge_set(struct pb_stackset *into, const struct pb_stackset *from)
{
    _cleanup_free_ void *bytes = NULL;
    size_t size;

    int r = pb_stackset_encode(from, &bytes, &size);
    return r < 0 ? r : pb_stackset_merge(into, bytes, size, NULL, NULL, NULL);
}

static void sets_merge_in_any_order_to_the_same(void **state)
{
    struct pb_stackset *whole = set_of(0, 100, 40), *one, *parts[4];

    for (int i = 0; i < 4; i++)
        parts[i] = set_of(25 * i, 25, 40);
    assert_int_equal(pb_stackset_new(&one), 0);
    for (int i = 3; i >= 0; i--) {
        assert_int_equal(merge_set(one, parts[i]), 0);
        pb_stackset_free(parts[i]);
    }
    assert_same(whole, one);
    pb_stackset_free(whole);
    pb_stackset_free(one);
}

static void bytes_come_back_as_they_were(void **state)
{
    struct pb_stackset *set = set_of(0, 20, 3), *back;
    _cleanup_free_ void *bytes = NULL;
    size_t size;

    assert_int_equal(pb_stackset_encode(set, &bytes, &size), 0);
    assert_int_equal(pb_stackset_new(&back), 0);
    assert_int_equal(pb_stackset_merge(back, bytes, size, NULL, NULL, NULL), 0);
    assert_same(set, back);
    for (size_t cut = 0; cut < size; cut += 7)
        assert_int_equal(pb_stackset_merge(back, bytes, cut, NULL, NULL, NULL), -EBADMSG);
    assert_same(set, back); /* what is wrong has changed nothing */
    pb_stackset_free(back);
    pb_stackset_free(set);
}

static bool owns_low_ranks(void *arg, const struct pb_set_range *range)
{
    return range->last < *(const uint32_t *)arg;
}

static void ranks_of_another_node_are_not_taken(void **state)
{
    struct pb_stackset *set = set_of(0, 20, 3), *into = set_of(100, 5, -1), *before = set_of(100, 5, -1);
    _cleanup_free_ void *bytes = NULL;
    size_t size;

    assert_int_equal(pb_stackset_encode(set, &bytes, &size), 0);
    assert_int_equal(pb_stackset_merge(into, bytes, size, owns_low_ranks, &(uint32_t){19}, NULL), -EPERM);
    assert_same(before, into);
    assert_int_equal(pb_stackset_merge(into, bytes, size, owns_low_ranks, &(uint32_t){20}, NULL), 0);
    assert_int_equal(pb_stackset_processes(into), 25);
    pb_stackset_free(set);
    pb_stackset_free(into);
    pb_stackset_free(before);
}

static void a_set_without_lines_merges_as_one(void **state)
{
    struct pb_stackset *lines[2] = {set_of(0, 2, -1), set_of(2, 2, -1)}, *set;

    assert_int_equal(pb_stackset_new(&set), 0);
    pb_stackset_drop_lines(set);
    for (int i = 0; i < 2; i++) {
        struct pb_set_stack stack;
        struct pb_set_frame f;
        assert_int_equal(merge_set(set, lines[i]), 0);
        pb_stackset_stack(set, 0, &stack);
        pb_stackset_frame(set, stack.frames[0], &f);
        assert_int_equal(f.line, 0);
        pb_stackset_free(lines[i]);
    }
    assert_int_equal(pb_stackset_n(set), THREADS);
    pb_stackset_free(set);
}

/* Of this process: how busy the machine is does not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void ten_thousand_ranks_merge_in_a_second(void **state)
{
    struct pb_stackset *set, *part = set_of(0, 1, -1);
    _cleanup_free_ void *bytes = NULL;
    size_t size;

    assert_int_equal(pb_stackset_encode(part, &bytes, &size), 0);
    assert_int_equal(pb_stackset_new(&set), 0);
    double began = cpu_seconds();
    for (int rank = 0; rank < 10000; rank++) {
        assert_int_equal(pb_stackset_merge(set, bytes, size, NULL, NULL, NULL), 0);
    }
    double seconds = cpu_seconds() - began;
    print_message("10,000 ranks of %d threads, %d frames deep: %.2f s, %zu bytes each\n", THREADS, DEPTH,
                  seconds, size);
    assert_int_equal(pb_stackset_n(set), THREADS);
    assert_int_equal(pb_stackset_threads(set), 10000 * THREADS);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(seconds < 5 * TEST_SLOWNESS); /* usually below one */
#endif
    pb_stackset_free(set);
    pb_stackset_free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_odd_rank_comes_first_and_the_others_are_one_stack),
        cmocka_unit_test(sets_merge_in_any_order_to_the_same),
        cmocka_unit_test(bytes_come_back_as_they_were),
        cmocka_unit_test(ranks_of_another_node_are_not_taken),
        cmocka_unit_test(a_set_without_lines_merges_as_one),
        cmocka_unit_test(ten_thousand_ranks_merge_in_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
