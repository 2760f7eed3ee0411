/* Statistics of arrays of a process: of this one, whose numbers are known; and of addresses that do not
 * exist. */
#include <math.h>
#include <sys/mman.h>

#include "ask/numbers.h"

#include "test.h"

static int ask_numbers(const struct pb_numbers_place *place, struct pb_numbers *ret)
{
    const struct pb_ask ask = {.limit_ms = 20000};
    struct pb_err err = {0};
    return pb_numbers_ask(&ask, getpid(), place, ret, &err);
}

static void every_element_counts_once_whatever_the_order(void **state)
{
    static float table[30][40];
    struct pb_numbers n;

    for (int i = 0; i < 30 * 40; i++)
        table[i / 40][i % 40] = (float)i;
    const struct pb_numbers_place places[] = {
        {(uintptr_t)table, "float32", 2, {30, 40}, {160, 4}},
        {(uintptr_t)table, "float32", 2, {40, 30}, {4, 160}},            /* turned */
        {(uintptr_t)&table[29][39], "float32", 2, {30, 40}, {-160, -4}}, /* backwards */
        {(uintptr_t)table,
         "float32",
         4,
         {1, 30, 7, 40},
         {9999, 160, 0, 4}}, /* spread: seven times the same */
        {(uintptr_t)table, "float32", 3, {30, 4, 10}, {160, 40, 4}},
    };
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        assert_int_equal(ask_numbers(&places[i], &n), 0);
        assert_true(n.all && n.elements == 1200 && n.nan == 0 && n.zero == 1);
        assert_true(n.min == 0 && n.max == 1199 && fabs(n.mean - 599.5) < 1e-9 &&
                    fabs(n.std - 346.41) < 0.01);
        for (int k = 0; k < PB_NUMBERS_BINS; k++)
            assert_true(n.bins[k] == 75);
    }
    /* Every third column. */
    const struct pb_numbers_place thin = {(uintptr_t)table, "float32", 2, {30, 14}, {160, 12}};
    assert_int_equal(ask_numbers(&thin, &n), 0);
    assert_true(n.elements == 420 && n.max == 29 * 40 + 39);
}

static void small_floats_are_what_they_mean(void **state)
{
    static const uint16_t half[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00, 0x7e00};
    static const uint8_t e4m3[] = {0x38, 0x7e, 0x7f, 0x01}, e5m2[] = {0x3c, 0x7b, 0x7c, 0x7d};
    struct pb_numbers n;

    assert_int_equal(ask_numbers(&(struct pb_numbers_place){(uintptr_t)half, "float16", 1, {6}, {2}}, &n), 0);
    assert_true(n.min == -2 && n.max == 65504 && n.infinite == 1 && n.nan == 1);
    assert_int_equal(
        ask_numbers(&(struct pb_numbers_place){(uintptr_t)e4m3, "float8_e4m3fn", 1, {4}, {1}}, &n), 0);
    assert_true(n.max == 448 && n.nan == 1 && n.infinite == 0 && n.min == 0.001953125);
    assert_int_equal(ask_numbers(&(struct pb_numbers_place){(uintptr_t)e5m2, "float8_e5m2", 1, {4}, {1}}, &n),
                     0);
    assert_true(n.max == 57344 && n.min == 1 && n.nan == 1 && n.infinite == 1);
}

static void memory_that_is_gone_is_no_harm(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *at = mmap(NULL, 512 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct pb_numbers_place place = {(uintptr_t)at, "uint8", 1, {(int64_t)(512 * page)}, {1}};
    struct pb_numbers n;

    munmap(at + 300 * page, 212 * page);
    assert_int_equal(ask_numbers(&place, &n), 0);
    assert_true(!n.all && n.elements > 0 && n.elements <= 300 * page);
    munmap(at, 300 * page);
    assert_int_equal(ask_numbers(&place, &n), -EFAULT);
}

static void places_that_cannot_be_are_refused(void **state)
{
    static double number = 1;
    const struct pb_numbers_place places[] = {
        {(uintptr_t)&number, "string", 1, {1}, {8}},
        {(uintptr_t)&number, "float64", 65, {1}, {8}},
        {(uintptr_t)&number, "float64", 1, {-1}, {8}},
        {(uintptr_t)&number, "float64", 1, {2}, {INT64_MIN}},
        {(uintptr_t)&number, "float64", 2, {INT64_MAX / 16, INT64_MAX / 16}, {8, INT64_MAX}},
        {(uintptr_t)&number, "float64", 2, {2, INT64_MAX / 16}, {INT64_MAX, 1}},
    };
    struct pb_numbers n;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        assert_int_equal(ask_numbers(&places[i], &n), -EINVAL);
    assert_int_equal(ask_numbers(&(struct pb_numbers_place){(uintptr_t)&number, "float64", 0, {0}, {0}}, &n),
                     0);
    assert_true(n.elements == 1 && n.mean == 1 && n.std == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_counts_once_whatever_the_order),
        cmocka_unit_test(small_floats_are_what_they_mean),
        cmocka_unit_test(memory_that_is_gone_is_no_harm),
        cmocka_unit_test(places_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
