/* A list of threads has those that stay, whichever of the others end while it is read. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "base/err.h"
#include "remote/threads.h"

#include "test.h"

enum { ROUNDS = 1500, SHORT = 4 };

static void *end_soon(void *microseconds)
{
    usleep((useconds_t)(uintptr_t)microseconds);
    return NULL;
}

static atomic_int staying;
static pthread_mutex_t stays = PTHREAD_MUTEX_INITIALIZER;

static void *stay(void *unused)
{
    (void)unused;
    staying = (int)syscall(SYS_gettid);
    pthread_mutex_lock(&stays);
    pthread_mutex_unlock(&stays);
    return NULL;
}

/* The one that stays comes last in the kernel's list. */
static void test_one_that_stays_is_listed(void **state)
{
    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct pb_native_threads threads = {0};
        struct pb_err err = {0};
        pthread_t ends[SHORT], last;

        for (unsigned i = 0; i < SHORT; i++)
            assert_int_equal(
                pthread_create(&ends[i], NULL, end_soon, (void *)(uintptr_t)(round % 150 + 20 * i)), 0);
        staying = 0;
        pthread_mutex_lock(&stays);
        assert_int_equal(pthread_create(&last, NULL, stay, NULL), 0);
        while (!staying)
            ;
        assert_int_equal(pb_native_threads_read(getpid(), &threads, &err), 0);
        bool found = pb_native_threads_find(&threads, staying);
        pthread_mutex_unlock(&stays);
        pb_native_threads_done(&threads);
        for (unsigned i = 0; i < SHORT; i++)
            pthread_join(ends[i], NULL);
        pthread_join(last, NULL);
        if (!found)
            fail_msg("round %u: a thread that stays is not in the list", round);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_that_stays_is_listed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
