/* The SQL worker under a sanitizer: what it finds is written down, although the worker has no standard error
 * and may open no file. Asked of the worker with a hole in it, which can be told to crash; without a
 * sanitizer the crash is told to the caller and nothing is written. */
#include "engine_test.h"

#include <sys/stat.h>

#if defined(__SANITIZE_ADDRESS__)
#define NAME "AddressSanitizer"
#elif defined(__SANITIZE_THREAD__)
#define NAME "ThreadSanitizer"
#endif

static char report[600];

static int use_worker_with_a_hole(void **state)
{
    if (use_own_worker(state) < 0)
        return -1;
    snprintf(report, sizeof(report), "%s-escape.report", getenv("PROBING_SQL_WORKER"));
    *strrchr(report, '.') = '\0';
    setenv("PROBING_SQL_WORKER", report, 1);
    strcat(report, ".report");
    unlink(report);
    return 0;
}

static void a_crash_of_the_worker_is_reported(void **state)
{
    struct answer *a = ask(-1, "SELECT pb_escape('crash')");

    assert_true(a->r < 0);
    assert_non_null(strstr(a->err.text, "the SQL worker crashed"));
#ifdef NAME
    char text[4096] = "";
    FILE *f = fopen(report, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    assert_non_null(strstr(text, NAME));
#else
    assert_int_equal(access(report, F_OK), -1);
#endif
    expect(-1, "SELECT 6 * 7", "42\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_crash_of_the_worker_is_reported)};
    return cmocka_run_group_tests(tests, use_worker_with_a_hole, remove_own_directory);
}
