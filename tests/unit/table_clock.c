/* The rows' clock: as right as the system's, whichever it is read from. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "table/clock.h"

#include "test.h"

#define SLACK_NS 20000 /* the promise is 100 ns; a test shares its machine with others */

static int64_t now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static _Atomic int stop;
static _Atomic int64_t worst;
static _Atomic long reads;

/* Every reading lies between two readings of the system's clock. */
static void *compare(void *unused)
{
    (void)unused;
    while (!stop) {
        int64_t before = now(), ours = pb_clock_mono(), after = now();
        int64_t off = ours < before ? before - ours : ours > after ? ours - after : 0;
        if (off > worst)
            worst = off;
        reads++;
    }
    return NULL;
}

static void it_agrees_with_the_system_s_clock_over_many_fits(void **state)
{
    pthread_t threads[2];
    struct timespec tick = {.tv_nsec = 10 * 1000000};
    (void)state;

    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, compare, NULL), 0);
    for (int64_t end = now() + 4000000000; now() < end; nanosleep(&tick, NULL))
        pb_clock_tend();
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    print_message("%ld readings, at most %lld ns off; from the %s\n", (long)reads, (long long)worst,
                  pb_clock_is_counter() ? "counter" : "system's clock");
    assert_true(reads > 1000);
    assert_true(worst < SLACK_NS);
}

static void the_counter_is_used_where_the_kernel_uses_it(void **state)
{
    char name[16] = "";
    (void)state;

    FILE *f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (f) {
        assert_non_null(fgets(name, sizeof(name), f));
        fclose(f);
    }
#ifdef __x86_64__
    assert_int_equal(pb_clock_is_counter(), strcmp(name, "tsc\n") == 0);
#else
    assert_false(pb_clock_is_counter());
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_agrees_with_the_system_s_clock_over_many_fits),
        cmocka_unit_test(the_counter_is_used_where_the_kernel_uses_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
