/* The steps of a sample: every path ends, no stack is counted that was not proved, and what is read is always
 * followed by the end of its moment. */
#include "profile/steps.h"

#include "test.h"

static const struct {
    enum pb_step step;
    enum pb_outcome outcome;
} proofs[] = {{PB_STEP_LOOK_AGAIN, PB_OUTCOME_YES},
              {PB_STEP_INTERRUPT, PB_OUTCOME_YES},
              {PB_STEP_PROVE, PB_OUTCOME_YES}};

static bool is_proof(enum pb_step step, enum pb_outcome outcome)
{
    for (size_t i = 0; i < sizeof(proofs) / sizeof(proofs[0]); i++)
        if (proofs[i].step == step && proofs[i].outcome == outcome)
            return true;
    return false;
}

/* All that can follow, with and without a proof. */
static bool seen[PB_STEPS][2];

static void walk(enum pb_step step, bool proved)
{
    if (seen[step][proved])
        return;
    seen[step][proved] = true;
    if (pb_step_is_end(step))
        return;
    if (step == PB_STEP_READ) /* what is read now is not proved yet */
        proved = false;
    for (int outcome = 0; outcome < PB_OUTCOMES; outcome++)
        walk(pb_step_next(step, (enum pb_outcome)outcome),
             proved || is_proof(step, (enum pb_outcome)outcome));
}

static void test_no_stack_is_counted_without_a_proof(void **state)
{
    memset(seen, 0, sizeof(seen));
    walk(PB_STEP_LOOK_AGAIN, false);
    walk(PB_STEP_ASLEEP, false);
    assert_true(seen[PB_STEP_COUNT][true]);
    assert_false(seen[PB_STEP_COUNT][false]);
    for (int step = 0; step < PB_STEPS; step++)
        assert_true(seen[step][false] || seen[step][true]);
}

static void test_a_moment_that_has_begun_is_read_and_ended(void **state)
{
    assert_int_equal(pb_step_next(PB_STEP_ASLEEP, PB_OUTCOME_YES), PB_STEP_READ);
    assert_int_equal(pb_step_next(PB_STEP_INTERRUPT, PB_OUTCOME_OFF_CPU), PB_STEP_READ);
    assert_int_equal(pb_step_next(PB_STEP_PREEMPTED, PB_OUTCOME_YES), PB_STEP_READ);
    assert_int_equal(pb_step_next(PB_STEP_STOP, PB_OUTCOME_YES), PB_STEP_READ);
    assert_int_equal(pb_step_next(PB_STEP_READ, PB_OUTCOME_YES), PB_STEP_PROVE);
}

static void test_a_thread_that_ends_is_an_event_everywhere(void **state)
{
    for (int step = 0; step < PB_STEP_TAKEN; step++)
        assert_int_equal(pb_step_next((enum pb_step)step, PB_OUTCOME_GONE), PB_STEP_ENDED);
}

static void test_a_thread_that_does_not_stop_is_held_up_until_it_is_read(void **state)
{
    enum pb_watch_state s = pb_watch_state_next(PB_WATCH_NEW, PB_STEP_HELD_UP, false);
    assert_int_equal(s, PB_WATCH_HELD_UP);
    s = pb_watch_state_next(s, PB_STEP_REFUSED, false);
    assert_int_equal(s, PB_WATCH_HELD_UP);
    assert_int_equal(pb_watch_state_next(s, PB_STEP_TAKEN, false), PB_WATCH_MOVING);
    assert_int_equal(pb_watch_state_next(s, PB_STEP_TAKEN, true), PB_WATCH_SETTLED);
    assert_int_equal(pb_watch_state_next(PB_WATCH_SETTLED, PB_STEP_REFUSED, false), PB_WATCH_MOVING);
}

static void test_all_have_names(void **state)
{
    for (int step = 0; step < PB_STEPS; step++)
        assert_true(strlen(pb_step_name((enum pb_step)step)) > 3);
    for (int outcome = 0; outcome < PB_OUTCOMES; outcome++)
        assert_true(strlen(pb_outcome_name((enum pb_outcome)outcome)) > 1);
    assert_string_equal(pb_watch_state_name(PB_WATCH_HELD_UP), "held-up");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_stack_is_counted_without_a_proof),
        cmocka_unit_test(test_a_moment_that_has_begun_is_read_and_ended),
        cmocka_unit_test(test_a_thread_that_ends_is_an_event_everywhere),
        cmocka_unit_test(test_a_thread_that_does_not_stop_is_held_up_until_it_is_read),
        cmocka_unit_test(test_all_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
