/* The timeline: tracks of several machines on one clock, and what the writers make of them. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profile_test.h"

#include "profile/timeline.h"
#include "profile/write.h"

#define S ((uint64_t)1000000000)

static void timeline_cleanup(struct pb_timeline **t)
{
    pb_timeline_free(*t);
}

/* A machine whose clock stood at that when it was UTC; one thread, a sample at each of the seconds after it.
 */
static struct pb_profile *machine(pid_t pid, uint64_t monotonic, int64_t utc, int seconds)
{
    struct pb_profile *p;

    assert_int_equal(pb_profile_new(0, &p), 0);
    pb_profile_facts(p)->rate = 1;
    pb_profile_facts(p)->duration_ns = (uint64_t)seconds * S;
    pb_profile_facts(p)->start = (struct pb_profile_clocks){monotonic, monotonic, utc};
    uint32_t thread = pb_profile_thread(p, pid, pid, "main", pid == 1 ? "rank 0" : "rank 1");
    for (int i = 1; i <= seconds; i++) {
        char name[16];
        snprintf(name, sizeof(name), "f%d", i);
        uint32_t node = add_call(p, PB_PROFILE_ROOT, name, "a.py", i);
        assert_int_equal(pb_profile_add(p, thread, node, 0, monotonic + (uint64_t)i * S, 1), 0);
    }
    return p;
}

static void brings_machines_onto_one_clock(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *one = machine(1, 500 * S, 1000000 * (int64_t)S, 3);
    _cleanup_(profile_cleanup) struct pb_profile *two = machine(2, 90000 * S, 1000001 * (int64_t)S, 2);
    _cleanup_(timeline_cleanup) struct pb_timeline *t = NULL;

    assert_int_equal(pb_timeline_new(&t), 0);
    assert_int_equal(pb_timeline_add_profile(t, one), 0);
    assert_int_equal(pb_timeline_add_profile(t, two), 0);
    assert_int_equal(pb_timeline_finish(t), 0);
    assert_int_equal(pb_timeline_ntracks(t), 2);
    const struct pb_track *b = pb_timeline_track(t, 1);
    assert_int_equal(b->n, 2);
    assert_int_equal(b->running, 2);
    /* It began a second after the other, by UTC: its first sample is two seconds after the other's beginning.
     */
    assert_int_equal(pb_timeline_slice(t, b->first)->end, 502 * S);
    assert_int_equal(pb_timeline_slice(t, b->first + 1)->end, 503 * S);
    assert_string_equal(b->process, "rank 1");
}

static char *speedscope(const struct pb_timeline *t)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_int_equal(pb_write_speedscope(out, t, false), 0);
    fclose(out);
    return text;
}

/* A thread that begins late, and one that waits in between: the time in which there is nothing is kept. */
static void keeps_the_time_in_between_by_the_wall_clock_alone(void **state)
{
    _cleanup_(profile_cleanup) struct pb_profile *p = machine(1, 500 * S, 1000000 * (int64_t)S, 1);
    uint32_t thread = pb_profile_thread(p, 1, 2, "late", "rank 0");

    pb_profile_add(p, thread, 1, 0, 520 * S, 1);
    for (int cpu = 0; cpu < 2; cpu++) {
        _cleanup_(timeline_cleanup) struct pb_timeline *t = NULL;
        pb_profile_facts(p)->clock = cpu ? "CPU" : "wall";
        assert_int_equal(pb_timeline_new(&t), 0);
        assert_int_equal(pb_timeline_add_profile(t, p), 0);
        assert_int_equal(pb_timeline_finish(t), 0);
        _cleanup_free_ char *text = speedscope(t);
        assert_non_null(strstr(text, cpu ? "\"weights\":[1000],\"endValue\":1000}]"
                                         : "\"weights\":[20000,1000],\"endValue\":21000}]"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(brings_machines_onto_one_clock),
        cmocka_unit_test(keeps_the_time_in_between_by_the_wall_clock_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
