/* Profiles as a question: processes that join and end, ends in time and by the caller, a sink
 * instead of its own profile, and samples as a stream. tsan: no: it starts processes and traces them. */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "ask/profiles.h"
#include "base/err.h"
#include "base/time.h"
#include "profile/stream.h"

#include "slow.h"
#include "test.h"

#define MS PB_NS_PER_MS

/* A process that computes until it is killed. */
static struct pb_target start(void)
{
    struct pb_target t = {.pid = fork()};

    assert_true(t.pid >= 0);
    if (t.pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when an assertion ends us */
    for (volatile unsigned i = 0; t.pid == 0; i++)
        ;
    snprintf(t.label, sizeof(t.label), "pid %d", (int)t.pid);
    return t;
}

static void end(const struct pb_target *t)
{
    kill(t->pid, SIGKILL);
    waitpid(t->pid, NULL, 0);
}

static uint64_t samples_of(const struct pb_profile *p, pid_t pid)
{
    uint64_t n = 0;

    for (size_t i = 0; i < pb_profile_ncounts(p); i++) {
        struct pb_count c = pb_profile_count_at(p, i);
        n += pb_profile_thread_at(p, c.thread).pid == pid ? c.samples : 0;
    }
    return n;
}

static const struct pb_sampler_options native = {.rate = 100, .native = true};

/* A busy machine may run the process late. */
static void run_until_more(struct pb_profiling *p, const struct pb_profile *in, pid_t pid, uint64_t before)
{
    for (int i = 0; i < 100 && samples_of(in, pid) <= before; i++)
        assert_int_equal(pb_profiling_run(p, 100 * MS), PB_PROFILING_GOES_ON);
    assert_true(samples_of(in, pid) > before);
}

static void processes_join_and_end_while_it_runs(void **state)
{
    struct pb_target one = start(), two = start();
    const struct pb_profiling_options options = {.sampler = native};
    struct pb_profiling *p;

    assert_int_equal(pb_profiling_new(&options, &p, NULL), 0);
    struct pb_profile *profile = pb_profiling_profile(p);
    assert_int_equal(pb_profiling_join(p, &one, NULL), 0);
    assert_int_equal(pb_profiling_join(p, &one, NULL), -EALREADY);
    run_until_more(p, profile, one.pid, 0);
    assert_int_equal(samples_of(profile, two.pid), 0);
    assert_int_equal(pb_profiling_join(p, &two, NULL), 0);
    end(&one);
    uint64_t before = samples_of(profile, one.pid);
    run_until_more(p, profile, two.pid, 0);
    assert_true(samples_of(profile, one.pid) >= before); /* kept */
    end(&two);
    assert_int_equal(pb_profiling_run(p, 5000 * MS), PB_PROFILING_ENDED);
    pb_profiling_free(p);
}

static void ends_when_its_time_is_over(void **state)
{
    struct pb_target one = start();
    const struct pb_profiling_options options = {.sampler = native, .duration_ns = 200 * MS};
    struct pb_profiling *p;

    assert_int_equal(pb_profiling_new(&options, &p, NULL), 0);
    assert_int_equal(pb_profiling_join(p, &one, NULL), 0);
    assert_int_equal(pb_profiling_run(p, 60000 * MS), PB_PROFILING_DONE);
    pb_profiling_free(p);
    end(&one);
}

static void *cancel_soon(void *arg)
{
    pb_sleep_ns(200 * MS);
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

/* In the middle of a wait of a minute and more. */
static void another_thread_cancels_it(void **state)
{
    struct pb_target one = start();
    atomic_bool cancelled = false;
    struct pb_profiling_options options = {.sampler = native, .cancelled = &cancelled};
    struct pb_profiling *p;
    pthread_t thread;

    options.sampler.rate = 0.01;
    assert_int_equal(pb_profiling_new(&options, &p, NULL), 0);
    assert_int_equal(pb_profiling_join(p, &one, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &cancelled), 0);
    uint64_t before = pb_now_ns();
    assert_int_equal(pb_profiling_run(p, 600000 * MS), PB_PROFILING_CANCELLED);
    assert_true(pb_now_ns() - before < 10000 * MS * TEST_SLOWNESS);
    pthread_join(thread, NULL);
    pb_profiling_free(p);
    end(&one);
}

static void a_sink_gets_the_samples_and_epochs_begin(void **state)
{
    struct pb_target one = start();
    struct pb_collector collector;
    struct pb_profiling *p;

    assert_int_equal(pb_collector_init(&collector, 0), 0);
    const struct pb_sink sink = pb_collector_sink(&collector);
    const struct pb_profiling_options options = {.sampler = native, .sink = &sink};
    assert_int_equal(pb_profiling_new(&options, &p, NULL), 0);
    assert_int_equal(pb_profiling_join(p, &one, NULL), 0);
    run_until_more(p, collector.p, one.pid, 0);
    uint64_t before = samples_of(collector.p, one.pid);
    assert_int_equal(pb_profiling_begin_epoch(p), 0);
    run_until_more(p, collector.p, one.pid, before);
    assert_int_equal(pb_profile_ncounts(pb_profiling_profile(p)), 0);
    pb_profiling_free(p);
    pb_collector_done(&collector);
    end(&one);
}

static void a_profile_of_nobody_says_why(void **state)
{
    const struct pb_target gone = {.pid = 1 << 30, .label = "pid 0"};
    const struct pb_profiling_options options = {.sampler = native};
    struct pb_profiling *p;
    struct pb_err err = {0};

    assert_int_equal(pb_profiling_new(&options, &p, NULL), 0);
    assert_true(pb_profiling_join(p, &gone, &err) < 0);
    assert_true(err.text[0]);
    pb_profiling_free(p);
}

/* What a stream holds comes out as it went in, in pieces of any size; cut or changed anywhere, it is an error
 * or some samples, never a crash. */
static void a_stream_of_anybodys_is_read_or_refused(void **state)
{
    struct pb_profile *names;
    struct pb_stream_writer w;
    struct pb_collector collector;
    struct pb_stream_reader *r;
    const void *frame;

    assert_int_equal(pb_profile_new(0, &names), 0);
    pb_stream_writer_init(&w);
    struct pb_sink sink = pb_stream_sink(&w);
    uint32_t thread = pb_profile_thread(names, 1, 2, "t", "rank 0");
    pb_profile_rank_thread(names, thread, 7);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int i = 0; i < 20; i++) {
            char name[16];
            snprintf(name, sizeof(name), "f%d", i % 5);
            uint32_t function = pb_profile_function(names, PB_FRAME_PYTHON, name, "a.py");
            uint32_t node = pb_profile_node(names, PB_PROFILE_ROOT, pb_profile_frame(names, function, i));
            struct pb_sample sample = {(uint64_t)(1000 + i), thread, node, PB_SAMPLE_GIL, 2};
            assert_int_equal(sink.add(sink.arg, names, &sample), 0);
        }
        sink.begin_epoch(sink.arg, names);
        assert_int_equal(pb_profile_begin_epoch(names, NULL, 0, &thread, 1), 0);
    }
    pb_stream_end(&w, 7);
    int len = pb_stream_frame(&w, names, &frame);
    assert_true(len > 0);
    uint8_t *copy = malloc((size_t)len);
    for (int broken = -1; broken < 8 * len; broken++) {
        memcpy(copy, frame, (size_t)len);
        if (broken >= 0)
            copy[broken / 8] ^= (uint8_t)(1 << broken % 8);
        assert_int_equal(pb_collector_init(&collector, 0), 0);
        sink = pb_collector_sink(&collector);
        assert_int_equal(pb_stream_reader_new(0, &sink, &r), 0);
        int result = 0;
        for (int at = 0, step = 1 + (broken & 63); result == 0 && at < len; at += step)
            result = pb_stream_feed(r, copy + at, (size_t)(len - at < step ? len - at : step));
        if (broken < 0) {
            unsigned why = 0;
            assert_int_equal(result, 0);
            assert_true(pb_stream_ended(r, &why) && why == 7);
            assert_int_equal(pb_profile_samples(collector.p), 2 * 20 * 2);
            assert_int_equal(pb_profile_span_at(collector.p, 0).start, 1000);
            assert_int_equal(pb_profile_thread_at(collector.p, 0).rank, 7);
        }
        pb_stream_reader_free(r);
        pb_collector_done(&collector);
    }
    free(copy);
    pb_stream_writer_done(&w);
    pb_profile_free(names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_join_and_end_while_it_runs),
        cmocka_unit_test(ends_when_its_time_is_over),
        cmocka_unit_test(another_thread_cancels_it),
        cmocka_unit_test(a_sink_gets_the_samples_and_epochs_begin),
        cmocka_unit_test(a_profile_of_nobody_says_why),
        cmocka_unit_test(a_stream_of_anybodys_is_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
