/* Records of CUPTI: those of the layouts from CUDA 11.7 to 13.4, made by hand, cut off at every length, and
 * of kinds that are not read. */
#include "agent/probes/gpu/cupti.h"
#include "agent/probes/gpu/gpu_clock.h"

#include "cupti_layout.h"
#include "test.h"

enum { SIZE = 248 }; /* of a kernel's record in 13.4; that of 11.7 has 176 */

static void make_kernel(void *record)
{
    const struct cupti_kernel kernel = {.start = 1000,
                                        .end = 4500,
                                        .device = 3,
                                        .stream = 13,
                                        .correlation = 77,
                                        .graph = 5,
                                        .registers = 96,
                                        .grid = {1 << 20, 1 << 14, 2},
                                        .block = {32, 4, 2},
                                        .static_shared = 1024,
                                        .dynamic_shared = 2048,
                                        .name = "kernel"};

    memset(record, 0x5a, SIZE);
    cupti_put_kernel(record, &kernel);
}

static void make_copy(void *record, uint32_t kind)
{
    const struct cupti_transfer copy = {.kind = kind,
                                        .copy = 2,
                                        .from = 3,
                                        .to = 1,
                                        .bytes = 1ull << 33,
                                        .start = 10,
                                        .end = 20,
                                        .device = 1,
                                        .stream = 7,
                                        .correlation = 78};

    memset(record, 0x5a, SIZE);
    cupti_put_transfer(record, &copy);
}

static void a_kernel_is_read(void **state)
{
    _Alignas(8) char record[SIZE];
    struct pb_cupti_record r;
    (void)state;

    make_kernel(record);
    assert_int_equal(pb_cupti_read(record, sizeof(record), &r), 1);
    assert_int_equal(r.kind, PB_CUPTI_KERNEL);
    assert_int_equal(r.start, 1000);
    assert_int_equal(r.end, 4500);
    assert_int_equal(r.device, 3);
    assert_int_equal(r.stream, 13);
    assert_int_equal(r.correlation, 77);
    assert_int_equal(r.graph, 5);
    assert_string_equal(r.name, "kernel");
    assert_true(r.blocks == 1ull << 35);
    assert_int_equal(r.threads, 256);
    assert_int_equal(r.shared, 3072);
    assert_int_equal(r.registers, 96);
    assert_false(pb_cupti_is_pageable(&r));
}

static void copies_and_sets_are_read(void **state)
{
    _Alignas(8) char record[SIZE];
    struct pb_cupti_record r;
    (void)state;

    make_copy(record, PB_CUPTI_COPY);
    assert_int_equal(pb_cupti_read(record, sizeof(record), &r), 1);
    assert_true(r.bytes == 1ull << 33);
    assert_int_equal(r.end - r.start, 10);
    assert_int_equal(r.device, 1);
    assert_int_equal(r.stream, 7);
    assert_int_equal(r.correlation, 78);
    assert_string_equal(pb_cupti_copy_name(&r), "device to host");
    assert_true(pb_cupti_is_pageable(&r));
    record[4] = 99;
    assert_int_equal(pb_cupti_read(record, sizeof(record), &r), 1);
    assert_null(pb_cupti_copy_name(&r));
    make_copy(record, PB_CUPTI_SET);
    assert_int_equal(pb_cupti_read(record, sizeof(record), &r), 1);
    assert_string_equal(pb_cupti_copy_name(&r), "set");
    assert_false(pb_cupti_is_pageable(&r));
}

/* Every length is in memory of its own, so that a sanitizer sees a byte too many. */
static void a_record_that_is_cut_off_is_not_read(void **state)
{
    const struct {
        uint32_t kind;
        size_t needs;
    } kinds[] = {{PB_CUPTI_KERNEL, 160}, {PB_CUPTI_COPY, 76}, {PB_CUPTI_SET, 76}};
    _Alignas(8) char record[SIZE];
    struct pb_cupti_record r;
    (void)state;

    for (size_t k = 0; k < 3; k++) {
        make_kernel(record);
        cupti_put_kind(record, kinds[k].kind);
        for (size_t size = 0; size <= SIZE; size++) {
            char *part = malloc(size ? size : 1);
            assert_non_null(part);
            memcpy(part, record, size);
            assert_int_equal(pb_cupti_read(part, size, &r), size >= kinds[k].needs ? 1 : -EINVAL);
            free(part);
        }
    }
}

static void other_kinds_are_left(void **state)
{
    _Alignas(8) char record[SIZE] = {0};
    struct pb_cupti_record r;
    (void)state;

    for (uint32_t kind = 0; kind < 100; kind++) {
        cupti_put_kind(record, kind);
        int read = kind == PB_CUPTI_KERNEL || kind == PB_CUPTI_COPY || kind == PB_CUPTI_SET;
        assert_int_equal(pb_cupti_read(record, sizeof(record), &r), read);
    }
}

static void other_versions_are_not_known(void **state)
{
    const uint32_t known[] = {17, 18, 22, 24, 26, 28, 130000, 130001, 130401};
    const uint32_t others[] = {0, 12, 16, 29, 100000, 129999, 130500, 140000, UINT32_MAX};
    (void)state;

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        assert_true(pb_cupti_is_known(known[i]));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(pb_cupti_is_known(others[i]));
}

static int is_near(double a, double b, double by)
{
    return a - b < by && b - a < by;
}

static void a_clock_of_ticks_becomes_nanoseconds(void **state)
{
    const int64_t mono = 7000000000;
    const uint64_t ticks = 123456789012345;
    struct pb_gpu_clock clock;
    (void)state;

    pb_gpu_clock_begin(&clock, mono, ticks);
    pb_gpu_clock_adjust(&clock, mono + 20000000, ticks + 41960000); /* 2.098 a ns, and 20 ms later */
    assert_true(is_near(pb_gpu_clock_ns(&clock, 2098000), 1e6, 10));
    assert_true(is_near((double)(pb_gpu_clock_mono(&clock, ticks + 2098000000) - mono), 1e9, 2000));
    assert_true(is_near((double)(pb_gpu_clock_mono(&clock, ticks - 2098000) - mono), -1e6, 10));
}

/* CLOCK_REALTIME is slewed by up to 500 ppm, and a thread may lose its CPU between two looks. */
static void a_clock_of_nanoseconds_stays_one(void **state)
{
    const int64_t mono = 5;
    const uint64_t there = 1795115693000000000;
    struct pb_gpu_clock clock;
    (void)state;

    pb_gpu_clock_begin(&clock, mono, there);
    assert_int_equal(pb_gpu_clock_mono(&clock, there + 17), mono + 17);
    pb_gpu_clock_adjust(&clock, mono + 20000000, there + 20009000);
    assert_true(pb_gpu_clock_ns(&clock, 1234) == 1234);
    assert_int_equal(pb_gpu_clock_mono(&clock, there + 60000000001), mono + 60000000001);
    assert_int_equal(pb_gpu_clock_mono(&clock, there - 3), mono - 3);
    /* One that stands still or steps back says nothing. */
    pb_gpu_clock_adjust(&clock, mono + 40000000, there);
    pb_gpu_clock_adjust(&clock, mono - 1, there + 5);
    assert_true(pb_gpu_clock_ns(&clock, 1234) == 1234);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_read),
        cmocka_unit_test(copies_and_sets_are_read),
        cmocka_unit_test(a_record_that_is_cut_off_is_not_read),
        cmocka_unit_test(other_kinds_are_left),
        cmocka_unit_test(other_versions_are_not_known),
        cmocka_unit_test(a_clock_of_ticks_becomes_nanoseconds),
        cmocka_unit_test(a_clock_of_nanoseconds_stays_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
