/* diff: values that a run lacks are zero, what is beyond the bounds is counted, and which differences decide
 * the exit status. */
#include "cli/diff/run_diff.h"

#include "test.h"

enum { STEPS = 40 };

static void fill(struct pb_diff_side *s, enum pb_diff_kind kind, const char *name, double value)
{
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(pb_diff_take(s, kind, name, i, value), 0);
}

static void test_a_series_that_ends_early_is_zero_behind_it(void **state)
{
    struct pb_diff_side a = {.text = "a"}, b = {.text = "b"};
    struct pb_diff_changes found;
    struct pb_err err;
    (void)state;

    fill(&a, PB_DIFF_STEP, "step", 10);
    fill(&b, PB_DIFF_STEP, "step", 10);
    fill(&a, PB_DIFF_MODULE, "always", 1);
    fill(&b, PB_DIFF_MODULE, "always", 1);
    fill(&a, PB_DIFF_MODULE, "early", 0);
    for (int i = 0; i < STEPS / 2; i++)
        assert_int_equal(pb_diff_take(&b, PB_DIFF_MODULE, "early", i, 8), 0);
    /* What is behind its values, if that is read. */
    struct pb_diff_series *early = (struct pb_diff_series *)pb_diff_find(&b, PB_DIFF_MODULE, "early");
    for (size_t i = early->n; i < early->cap; i++)
        early->values[i] = 1e9;
    assert_int_equal(pb_diff_compare(&a, &b, &found, &err), 0);
    assert_int_equal(found.n, 1);
    assert_string_equal(found.at[0].name, "early");
    assert_true(found.at[0].a == 0 && found.at[0].b == 4 && found.at[0].most <= 8);
    assert_false(found.step.real || found.differs);
    pb_diff_changes_done(&found);
    pb_diff_series_done(&a);
    pb_diff_series_done(&b);
}

static void test_the_step_and_its_phases_decide(void **state)
{
    static const struct {
        enum pb_diff_kind kind;
        bool decides;
    } of[] = {{PB_DIFF_PHASE, true},
              {PB_DIFF_MODULE, false},
              {PB_DIFF_COLLECTIVE, false},
              {PB_DIFF_MEMORY, false},
              {PB_DIFF_LINE, false}};
    (void)state;

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct pb_diff_side a = {.text = "a"}, b = {.text = "b"};
        struct pb_diff_changes found;
        struct pb_err err;
        fill(&a, PB_DIFF_STEP, "step", 10);
        fill(&b, PB_DIFF_STEP, "step", 10);
        fill(&a, of[i].kind, "part", 1);
        fill(&b, of[i].kind, "part", 2);
        assert_int_equal(pb_diff_compare(&a, &b, &found, &err), 0);
        assert_true(found.n == 1 && found.at[0].real && found.differs == of[i].decides);
        pb_diff_changes_done(&found);
        fill(&b, PB_DIFF_STEP, "step", 10);
        assert_int_equal(pb_diff_compare(&a, &b, &found, &err), 0);
        assert_true(found.step.real && found.differs);
        pb_diff_changes_done(&found);
        pb_diff_series_done(&a);
        pb_diff_series_done(&b);
    }
}

static void test_what_has_no_room_is_counted(void **state)
{
    struct pb_diff_side s = {.text = "s"};
    (void)state;

    assert_int_equal(pb_diff_take(&s, PB_DIFF_STEP, "step", PB_DIFF_SLOTS - 1, 1), 0);
    assert_int_equal(s.left_out, 0);
    assert_int_equal(pb_diff_take(&s, PB_DIFF_STEP, "step", PB_DIFF_SLOTS, 1), 0);
    assert_int_equal(pb_diff_take(&s, PB_DIFF_STEP, "step", -1, 1), 0);
    assert_int_equal(s.left_out, 2);
    assert_int_equal(s.slots[PB_DIFF_STEP], PB_DIFF_SLOTS);
    pb_diff_series_done(&s);
    s.series = calloc(PB_DIFF_SERIES, sizeof(*s.series));
    s.nseries = PB_DIFF_SERIES;
    assert_non_null(s.series);
    assert_int_equal(pb_diff_take(&s, PB_DIFF_MODULE, "more", 0, 1), 0);
    assert_true(s.left_out == 3 && !pb_diff_find(&s, PB_DIFF_MODULE, "more"));
    pb_diff_series_done(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_series_that_ends_early_is_zero_behind_it),
        cmocka_unit_test(test_the_step_and_its_phases_decide),
        cmocka_unit_test(test_what_has_no_room_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
