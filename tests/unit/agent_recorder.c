/* Entry of the program's threads into the tables: no thread is inside once it is closed, and a thread that
 * stays inside is reported. Names of tables and columns. */
#include <pthread.h>
#include <stdatomic.h>

#include "agent/core/recorder.h"
#include "table/names.h"

#include "test.h"

#define THREADS 4
#define ROUNDS  300

static atomic_int stop, entered;
static atomic_int closed[2]; /* 1: this arena may not be used */

static void *use(void *unused)
{
    (void)unused;
    while (!stop) {
        uint32_t place;
        atomic_int *arena = (atomic_int *)(void *)pb_recorder_enter(&place);
        if (!arena)
            continue;
        assert_int_equal(*arena, 0);
        entered++;
        pb_recorder_leave(place);
    }
    return NULL;
}

static void nobody_is_inside_what_is_closed(void **state)
{
    pthread_t threads[THREADS];
    (void)state;

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        int before = entered;
        closed[i % 2] = 0;
        pb_recorder_open((struct pb_arena *)(void *)&closed[i % 2]);
        while (i % 10 == 0 && entered == before)
            ;
        assert_int_equal(pb_recorder_close(), 0);
        closed[i % 2] = 1;
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_true(entered > 0);
}

static void who_stays_inside_is_told_of(void **state)
{
    uint32_t place;
    (void)state;

    uint64_t before = pb_recorder_generation();
    pb_recorder_open((struct pb_arena *)(void *)&closed[0]);
    assert_int_equal(pb_recorder_generation(), before + 1);
    assert_non_null(pb_recorder_enter(&place));
    assert_int_equal(pb_recorder_close(), -EBUSY);
    assert_null(pb_recorder_enter(&place));
    pb_recorder_forget(); /* as in a forked child, where the one inside does not exist */
    pb_recorder_open((struct pb_arena *)(void *)&closed[0]);
    assert_int_equal(pb_recorder_close(), 0);
}

static void names_follow_one_rule(void **state)
{
    static const char *const tables[] = {"a", "steps", "mine.steps", "_x", "A9"};
    static const char *const no_tables[] = {"",    "1a",           "a b",    "a.b.c",    ".a",      "a.",
                                            "a-b", "pg_catalog.x", "TEMP.x", "_probing", "\xc3\xa4"};
    char longest[66];
    (void)state;

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        assert_true(pb_name_is_table(tables[i]));
    for (size_t i = 0; i < sizeof(no_tables) / sizeof(no_tables[0]); i++)
        assert_false(pb_name_is_table(no_tables[i]));
    memset(longest, 'a', sizeof(longest));
    longest[63] = '\0';
    assert_true(pb_name_is_table(longest));
    assert_false(pb_name_is_column(longest));
    longest[47] = '\0';
    assert_true(pb_name_is_column(longest));
    assert_false(pb_name_is_column("a.b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_inside_what_is_closed),
        cmocka_unit_test(who_stays_inside_is_told_of),
        cmocka_unit_test(names_follow_one_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
