/* In a process that locks all its memory our mappings and stacks take what is used of them. tsan: no, its
 * shadow memory would be locked too. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "table/pages.h"

#include "test.h"

#define SIZE  (32u << 20)
#define STACK (8u << 20)

static long number_of(const char *name)
{
    char line[128];
    long value = -1;
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    if (f)
        fclose(f);
    return value;
}

static long kb_after;

static void *use_stack(void *unused)
{
    struct pb_unlocked unlocked = pb_pages_free_stack(256u << 10, STACK - (256u << 10));

    kb_after = number_of("VmRSS:");
    pb_pages_keep_stack(&unlocked);
    return unlocked.at ? unused : NULL;
}

/* 0: as it should be; else which step was not. 77: memory may not be locked here. */
static int try_locked(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    void *was_locked;

    if (mlockall(MCL_FUTURE) < 0)
        return 77;
    long before = number_of("VmRSS:");
    char *private = pb_pages_map(SIZE), *shared = pb_pages_map_shared(SIZE, -1);
    if (!private || !shared || number_of("VmRSS:") - before > 1024)
        return 1;
    private[SIZE - 1] = shared[0] = 1;
    if (private[0] || shared[SIZE - 1])
        return 2;
    before = number_of("VmRSS:");
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    if (pthread_create(&thread, &attributes, use_stack, &kb_after) || pthread_join(thread, &was_locked))
        return 3;
    if (!was_locked || kb_after - before > 2048)
        return 4;
    /* The C library keeps the stack: it is locked again, and not filled. */
    return number_of("VmRSS:") - before > 2048 ? 5 : number_of("VmLck:") < (long)(STACK >> 10) - 1024 ? 6 : 0;
}

static void locked_memory_is_not_filled(void **state)
{
    int status;
#ifdef __SANITIZE_ADDRESS__ /* its shadow memory would be locked, and filled */
    skip();
#endif
    pid_t child = fork();

    if (child == 0)
        _exit(try_locked());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void what_cannot_be_had_is_an_error(void **state)
{
    assert_null(pb_pages_map(SIZE_MAX / 2));
    assert_null(pb_pages_map_shared(SIZE, 12345));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locked_memory_is_not_filled),
        cmocka_unit_test(what_cannot_be_had_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
