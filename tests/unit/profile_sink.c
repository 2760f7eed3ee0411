/* Where samples go: collectors beside each other, and epochs, which keep a profile that never ends in its
 * memory.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile_test.h"

#include "profile/sink.h"

#define MEMORY (1u << 20)

static uint32_t child(struct pb_profile *p, uint32_t parent, const char *name, int line)
{
    return add_call(p, parent, name, "a.py", line);
}

/* "outer:1;inner:2" */
static const char *path_of(const struct pb_profile *p, uint32_t node, char *buf, size_t size)
{
    uint32_t frames[64];
    size_t len = 0;

    buf[0] = '\0';
    for (size_t n = pb_profile_stack(p, node, frames, 64); n > 0; n--) {
        struct pb_profile_frame f = pb_profile_frame_at(p, frames[n - 1]);
        len += (size_t)snprintf(buf + len, size - len, "%s%s:%d", len ? ";" : "",
                                pb_profile_function_at(p, f.function).name, f.line);
    }
    return buf;
}

static void keeps_what_is_in_use_over_an_epoch(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(MEMORY);
    uint32_t outer = child(p, PB_PROFILE_ROOT, "outer", 1);
    uint32_t nodes[] = {child(p, outer, "inner", 2), PB_PROFILE_NONE, PB_PROFILE_ROOT};
    uint32_t threads[] = {pb_profile_thread(p, 1, 2, "worker", "rank 3")};
    char name[32], path[128];

    pb_profile_mark_ran(p, threads[0]);
    pb_profile_add(p, threads[0], nodes[0], 0, 1, 5);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "passing_%d", i);
        child(p, PB_PROFILE_ROOT, name, i);
    }
    double full = pb_profile_filled(p);
    assert_int_equal(pb_profile_begin_epoch(p, nodes, 3, threads, 1), 0);
    assert_true(pb_profile_filled(p) < full / 2);
    assert_int_equal(pb_profile_samples(p), 0);
    assert_int_equal(pb_profile_nnodes(p), 3);
    assert_string_equal(path_of(p, nodes[0], path, sizeof(path)), "outer:1;inner:2");
    assert_true(nodes[1] == PB_PROFILE_NONE && nodes[2] == PB_PROFILE_ROOT);
    assert_string_equal(pb_profile_thread_at(p, threads[0]).process, "rank 3");
    assert_true(pb_profile_thread_at(p, threads[0]).ran);
    assert_true(pb_profile_facts_of(p)->rate == 100);
}

/* Ten times what the memory holds, without a stack that is cut. */
static void goes_on_for_ever_in_bounded_memory(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(MEMORY);
    uint32_t node = child(p, PB_PROFILE_ROOT, "main", 1), thread = pb_profile_thread(p, 1, 1, "t", "pid 1");
    unsigned epochs = 0;
    char name[64];

    for (int i = 0; i < 100000; i++) {
        snprintf(name, sizeof(name), "a function with a rather long name, number %d", i);
        uint32_t leaf = child(p, node, name, i);
        assert_int_not_equal(leaf, PB_PROFILE_NONE);
        assert_int_equal(pb_profile_add(p, thread, leaf, 0, (uint64_t)i * 10000000, 1), 0);
        if (pb_profile_filled(p) > 0.5) {
            assert_int_equal(pb_profile_begin_epoch(p, &node, 1, &thread, 1), 0);
            epochs++;
        }
    }
    assert_true(epochs > 10);
}

static void a_collector_counts_by_numbers_of_its_own(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *names = new_profile(0);
    struct pb_collector one, two;

    assert_int_equal(pb_collector_init(&one, 0), 0);
    assert_int_equal(pb_collector_init(&two, 0), 0);
    struct pb_sink sinks[] = {pb_collector_sink(&one), pb_collector_sink(&two)};
    uint32_t thread = pb_profile_thread(names, 7, 8, "", "rank 0");
    uint32_t outer = child(names, PB_PROFILE_ROOT, "outer", 1), inner = child(names, outer, "inner", 2);
    struct pb_sample sample = {10000000, thread, inner, PB_SAMPLE_GIL, 3};
    char path[128];

    assert_int_equal(sinks[0].add(sinks[0].arg, names, &sample), 0);
    assert_int_equal(sinks[1].add(sinks[1].arg, names, &sample), 0);
    pb_profile_forget_samples(one.p); /* its reader has seen them; the other has not */
    sinks[0].begin_epoch(sinks[0].arg, names);
    sinks[1].begin_epoch(sinks[1].arg, names);
    assert_int_equal(pb_profile_begin_epoch(names, NULL, 0, NULL, 0), 0);
    /* The same numbers now mean other things. */
    thread = pb_profile_thread(names, 7, 9, "late", "rank 0");
    uint32_t other = child(names, PB_PROFILE_ROOT, "other", 3);
    assert_int_equal(other, outer);
    sample = (struct pb_sample){20000000, thread, other, 0, 4};
    assert_int_equal(sinks[0].add(sinks[0].arg, names, &sample), 0);
    assert_int_equal(sinks[1].add(sinks[1].arg, names, &sample), 0);
    pb_profile_name_thread(names, thread, "known by now");
    pb_collector_sync(&two, names);
    assert_int_equal(pb_profile_samples(one.p), 4);
    assert_int_equal(pb_profile_samples(two.p), 7);
    assert_int_equal(pb_profile_ncounts(two.p), 2);
    struct pb_count first = pb_profile_count_at(two.p, 0), second = pb_profile_count_at(two.p, 1);
    assert_string_equal(path_of(two.p, first.node, path, sizeof(path)), "outer:1;inner:2");
    assert_int_equal(first.flags, PB_SAMPLE_GIL);
    assert_string_equal(path_of(two.p, second.node, path, sizeof(path)), "other:3");
    assert_int_equal(pb_profile_thread_at(two.p, second.thread).tid, 9);
    assert_string_equal(pb_profile_thread_at(two.p, second.thread).name, "known by now");
    pb_collector_done(&one);
    pb_collector_done(&two);
}

static void samples_that_stand_for_many_ticks_fill_their_time(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = new_profile(0);
    uint32_t a = child(p, PB_PROFILE_ROOT, "a", 1), b = child(p, PB_PROFILE_ROOT, "b", 1);
    uint32_t thread = pb_profile_thread(p, 1, 1, "t", "pid 1");
    const uint64_t ms = 1000000;

    pb_profile_add(p, thread, a, 0, 1000 * ms, 1);
    pb_profile_add(p, thread, a, 0, 1500 * ms, 50); /* 49 of them were missed */
    pb_profile_add(p, thread, b, 0, 1600 * ms, 10);
    assert_int_equal(pb_profile_nspans(p), 2);
    assert_int_equal(pb_profile_span_at(p, 0).samples, 51);
    assert_int_equal(pb_profile_span_at(p, 0).start, 1000 * ms);
    assert_int_equal(pb_profile_span_at(p, 0).end, 1500 * ms);
    assert_int_equal(pb_profile_span_at(p, 1).start, 1510 * ms);
    assert_int_equal(pb_profile_span_at(p, 1).end, 1600 * ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_is_in_use_over_an_epoch),
        cmocka_unit_test(goes_on_for_ever_in_bounded_memory),
        cmocka_unit_test(a_collector_counts_by_numbers_of_its_own),
        cmocka_unit_test(samples_that_stand_for_many_ticks_fill_their_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
