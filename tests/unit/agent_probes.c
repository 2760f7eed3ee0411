/* Probes: started twice, stopped twice, one that does not start, one that does not stop, all of them on when
 * the agent goes, and a child of fork. */
#include <sys/wait.h>

#include "agent/core/agent_clock.h"
#include "agent/probes/probes.h"
#include "control/settings.h"
#include "table/arena.h"

#include "test.h"

static int starts, stops, ticks, forks, start_error, stop_error, over;
static char last_settings[PB_PROBE_SETTINGS];

static int start(struct pb_arena *arena, const char *settings, char *why, size_t why_size)
{
    (void)arena;
    if (start_error) {
        snprintf(why, why_size, "not today");
        return start_error;
    }
    starts++;
    snprintf(last_settings, sizeof(last_settings), "%s", settings);
    return pb_probe_check(settings, "speed depth", why, why_size);
}

static int stop(char *why, size_t why_size)
{
    if (stop_error) {
        snprintf(why, why_size, "somebody replaced its hook");
        return stop_error;
    }
    stops++;
    return 0;
}

static uint64_t tick(uint64_t now)
{
    ticks++;
    return over ? PB_PROBE_IS_OVER : now + 100 * PB_NS_PER_MS;
}

static void forked(void)
{
    forks++;
}

static const char *why_over(void)
{
    return over ? "it had no more to do" : "";
}

static int wanted; /* what the settings say; told once, as a probe does */

static int configure(const struct pb_settings *settings, const char *changed)
{
    int want = settings ? wanted : -1;
    wanted = -1;
    return want;
}

static const struct pb_probe hook = {.name = "hook",
                                     .text = "a test",
                                     .start = start,
                                     .stop = stop,
                                     .configure = configure,
                                     .tick = tick,
                                     .forked = forked,
                                     .why_over = why_over};
static const struct pb_probe *const list[] = {&pb_probe_memory_usage, &hook, NULL};
static struct pb_arena *arena;
static char why[300];

static int set_up(void **state)
{
    (void)state;
    starts = stops = ticks = forks = start_error = stop_error = over = 0;
    if (pb_arena_create(PB_ARENA_MEMFD, "test", NULL, &arena) < 0)
        return -1;
    return pb_probes_begin(list, arena, why, sizeof(why));
}

static int tear_down(void **state)
{
    (void)state;
    pb_probes_end();
    pb_arena_close(arena);
    return 0;
}

static enum pb_probe_state state_of(int i, char *text)
{
    struct pb_probe_info info;

    assert_int_equal(pb_probes_at(i, &info), 0);
    if (text)
        memcpy(text, info.text, sizeof(info.text));
    return info.state;
}

static void those_that_are_on_from_the_beginning_are_on(void **state)
{
    struct pb_probe_info info;
    (void)state;

    assert_int_equal(pb_probes_at(0, &info), 0);
    assert_int_equal(info.state, PB_PROBE_ON);
    assert_string_equal(info.text, "a row every 1 s");
    assert_int_equal(state_of(1, NULL), PB_PROBE_OFF);
    assert_int_equal(pb_probes_at(2, &info), -ENOENT);
    assert_non_null(pb_table_find(arena, "memory_usage"));
}

static void starting_twice_is_once_unless_its_settings_differ(void **state)
{
    (void)state;
    assert_int_equal(pb_probes_start("hook", "speed=1", why, sizeof(why)), 0);
    assert_int_equal(pb_probes_start("hook", "speed=1", why, sizeof(why)), 1);
    assert_int_equal(starts, 1);
    assert_int_equal(stops, 0);
    assert_int_equal(pb_probes_start("hook", "speed=2 depth=3", why, sizeof(why)), 0);
    assert_int_equal(starts, 2);
    assert_int_equal(stops, 1);
    assert_string_equal(last_settings, "speed=2 depth=3");
    /* Settings that it does not take: it is off then, and says why. */
    assert_int_equal(pb_probes_start("hook", "colour=red", why, sizeof(why)), -EINVAL);
    assert_non_null(strstr(why, "'colour=red' is no setting of this probe; it takes speed depth"));
    assert_int_equal(state_of(1, NULL), PB_PROBE_OFF);
    assert_int_equal(pb_probes_stop("hook", why, sizeof(why)), 1);
    assert_int_equal(pb_probes_start("nothing", "", why, sizeof(why)), -ENOENT);
    assert_string_equal(why, "there is no probe 'nothing'; there are memory_usage, hook");
    assert_int_equal(pb_probes_stop("nothing", why, sizeof(why)), -ENOENT);
    char long_settings[300];
    memset(long_settings, 'x', sizeof(long_settings) - 1);
    long_settings[299] = '\0';
    assert_int_equal(pb_probes_start("hook", long_settings, why, sizeof(why)), -EMSGSIZE);
}

static void one_that_does_not_start_is_off(void **state)
{
    (void)state;
    start_error = -EBUSY;
    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), -EBUSY);
    assert_string_equal(why, "not today");
    assert_int_equal(state_of(1, NULL), PB_PROBE_OFF);
    start_error = 0;
    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), 0);
}

static void one_that_does_not_stop_is_stuck_until_it_does(void **state)
{
    uint64_t next, now = pb_now_ns();
    char text[200];
    (void)state;

    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), 0);
    pb_probes_tick(now, &next);
    assert_int_equal(ticks, 1);
    stop_error = -EBUSY;
    assert_int_equal(pb_probes_stop("hook", why, sizeof(why)), -EBUSY);
    assert_int_equal(state_of(1, text), PB_PROBE_STUCK);
    assert_string_equal(text, "somebody replaced its hook");
    pb_probes_tick(now + PB_NS_PER_S, &next);
    assert_int_equal(ticks, 1);
    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), -EBUSY);
    assert_int_equal(starts, 1);
    stop_error = 0;
    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), 0);
    assert_int_equal(starts, 2);
    assert_int_equal(state_of(1, NULL), PB_PROBE_ON);
    stop_error = -EBUSY;
    assert_int_equal(pb_probes_end(), 1); /* detach does not wait for it */
    struct pb_probe_info info;
    assert_int_equal(pb_probes_at(0, &info), -ENOENT);
    assert_int_equal(pb_probes_tick(now, &next), 0);
    stop_error = 0;
    assert_int_equal(pb_probes_begin(list, arena, why, sizeof(why)), 0);
}

static void they_are_called_when_it_is_their_time(void **state)
{
    uint64_t next, now = pb_now_ns();
    (void)state;

    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), 0);
    assert_int_equal(pb_probes_tick(now, &next), 2);
    assert_int_equal(next, now + 100 * PB_NS_PER_MS);
    assert_int_equal(pb_probes_tick(now + 1, &next), 0);
    assert_int_equal(pb_probes_tick(next, &next), 1);
    assert_int_equal(pb_probes_start("memory_usage", "interval=20ms", why, sizeof(why)), 0);
    assert_int_equal(pb_probes_stop("hook", why, sizeof(why)), 0);
    now = pb_now_ns();
    assert_int_equal(pb_probes_tick(now, &next), 1);
    assert_true(next <= now + 20 * PB_NS_PER_MS);
    /* The process was stopped for an hour: one row, not as many as an hour has. */
    assert_int_equal(pb_probes_tick(now + 3600 * PB_NS_PER_S, &next), 1);
    assert_int_equal(next, now + 3600 * PB_NS_PER_S + 20 * PB_NS_PER_MS);
    const char *const wrong[] = {"interval=1",   "interval=0s", "interval=2h",
                                 "interval=-1s", "interval=",   "1s"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(pb_probes_start("memory_usage", wrong[i], why, sizeof(why)), -EINVAL);
}

static void one_that_ends_by_itself_is_off_and_says_why(void **state)
{
    uint64_t next, now = pb_now_ns();
    char text[200];
    (void)state;

    assert_int_equal(pb_probes_start("hook", "speed=1", why, sizeof(why)), 0);
    over = 1;
    pb_probes_tick(now, &next);
    assert_true(next <= now + PB_NS_PER_S);
    assert_int_equal(state_of(1, text), PB_PROBE_OFF);
    assert_string_equal(text, "it had no more to do");
    assert_int_equal(stops, 0);
    pb_probes_tick(now + PB_NS_PER_S, &next);
    assert_int_equal(ticks, 1);
    over = 0;
    /* With the settings that it had: it is started once more. */
    assert_int_equal(pb_probes_start("hook", "speed=1", why, sizeof(why)), 0);
    assert_int_equal(starts, 2);
}

static void a_child_of_fork_has_none(void **state)
{
    struct pb_probe_info info;
    int status;
    (void)state;

    assert_int_equal(pb_probes_start("hook", "", why, sizeof(why)), 0);
    pid_t child = fork();
    if (child == 0) {
        pb_probes_forget();
        _exit(forks == 1 && stops == 0 && pb_probes_at(0, &info) == -ENOENT ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(state_of(1, NULL), PB_PROBE_ON);
}

static void settings_start_and_stop_it_when_they_change(void **state)
{
    struct pb_settings settings;
    (void)state;

    pb_settings_init(&settings, "", 0);
    assert_int_equal(pb_probes_configure(&settings, "probing.redact", why, sizeof(why)), 0);
    assert_int_equal(state_of(1, NULL), PB_PROBE_OFF);
    wanted = 1;
    assert_int_equal(pb_probes_configure(&settings, "probing.redact", why, sizeof(why)), 0);
    assert_int_equal(state_of(1, NULL), PB_PROBE_ON);
    assert_int_equal(pb_probes_stop("hook", why, sizeof(why)), 0);
    assert_int_equal(pb_probes_configure(&settings, "probing.redact", why, sizeof(why)), 0);
    assert_int_equal(state_of(1, NULL), PB_PROBE_OFF); /* what a person stopped stays so */
    wanted = 1;
    start_error = -EBUSY;
    assert_int_equal(pb_probes_configure(&settings, "probing.redact", why, sizeof(why)), -EBUSY);
    start_error = 0;
    wanted = 1;
    assert_int_equal(pb_probes_configure(&settings, "probing.redact", why, sizeof(why)), 0);
    wanted = 0;
    assert_int_equal(pb_probes_configure(&settings, "probing.redact", why, sizeof(why)), 0);
    assert_int_equal(state_of(1, NULL), PB_PROBE_OFF);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(those_that_are_on_from_the_beginning_are_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(starting_twice_is_once_unless_its_settings_differ, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_does_not_start_is_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_does_not_stop_is_stuck_until_it_does, set_up, tear_down),
        cmocka_unit_test_setup_teardown(they_are_called_when_it_is_their_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_ends_by_itself_is_off_and_says_why, set_up, tear_down),
        cmocka_unit_test_setup_teardown(settings_start_and_stop_it_when_they_change, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_child_of_fork_has_none, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
