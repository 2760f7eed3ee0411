/* Who else runs on the CPUs of a process: one that computes there is named, and not the process itself.
 * tsan: no, it starts processes. */
#include "diagnose/neighbours.h"

#include "ask/ask.h"

#include "test.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BURNERS = 3, TRIES = 400 };

static pid_t start_burner(void)
{
    pid_t pid = fork();

    if (pid == 0)
        for (volatile unsigned n = 0;; n++) {
        }
    return pid;
}

/* On a busy machine others may run more: then it is asked again. */
static void test_one_that_computes_on_its_cpu_is_named(void **state)
{
    struct pb_ask ask = {0};
    pid_t pids[BURNERS];
    cpu_set_t all, one;
    char text[256] = "", wanted[32];
    bool found = false;
    int first = 0;
    (void)state;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    for (int i = 0; i < BURNERS; i++)
        pids[i] = start_burner();
    for (int n = 0; n < TRIES && !found; n++) {
        pb_diag_neighbours(&ask, getpid(), text, sizeof(text));
        for (int i = 0; i < BURNERS; i++) {
            snprintf(wanted, sizeof(wanted), "process %d (", (int)pids[i]);
            found |= strstr(text, wanted) != NULL;
        }
        snprintf(wanted, sizeof(wanted), "process %d (", (int)getpid());
        assert_null(strstr(text, wanted));
    }
    for (int i = 0; i < BURNERS; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    sched_setaffinity(0, sizeof(all), &all);
    assert_true(found);
    snprintf(wanted, sizeof(wanted), " on CPU %d", first);
    assert_non_null(strstr(text, wanted));
}

static void test_of_a_process_that_is_gone_nothing_is_said(void **state)
{
    struct pb_ask ask = {0};
    char text[256] = "x";
    pid_t pid = fork();
    (void)state;

    if (pid == 0)
        _exit(0);
    waitpid(pid, NULL, 0);
    pb_diag_neighbours(&ask, pid, text, sizeof(text));
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_that_computes_on_its_cpu_is_named),
        cmocka_unit_test(test_of_a_process_that_is_gone_nothing_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
