/* Whether a thread ran while it was read is known: a sleeper proves itself, one that wakes is noticed, one
 * that runs is refused or stopped, and all of them go on afterwards. */
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/time.h"
#include "remote/moment.h"
#include "remote/threads.h"

#include "test.h"

static pid_t start(void (*run)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also where the test fails, and nobody ends it */
        run();
        _exit(0);
    }
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void sleep_long(void)
{
    pause();
}

static void spin(void)
{
    for (;;)
        ;
}

static void nap(void)
{
    for (;;)
        pb_sleep_ns(2 * PB_NS_PER_MS);
}

static void open_after(pid_t pid, uint64_t ns, struct pb_moment *m)
{
    pb_sleep_ns(ns);
    assert_int_equal(pb_moment_open(pid, pid, m), 0);
}

static void a_sleeper_proves_itself_and_names_its_call(void **state)
{
    struct pb_moment m;
    pid_t pid = start(sleep_long);

    open_after(pid, 30 * PB_NS_PER_MS, &m);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_ASLEEP), PB_WAY_ASLEEP);
#ifdef SYS_pause
    assert_string_equal(pb_syscall_name(m.syscall), "pause");
#else
    assert_string_equal(pb_syscall_name(m.syscall), "ppoll");
#endif
    pb_sleep_ns(5 * PB_NS_PER_MS);
    assert_int_equal(pb_moment_end(&m), 0);
    pb_moment_close(&m);
    end(pid);
}

static void one_that_woke_is_noticed(void **state)
{
    struct pb_moment m;
    pid_t pid = start(nap);
    int begun = 0;

    open_after(pid, 30 * PB_NS_PER_MS, &m);
    for (int i = 0; i < 50; i++) {
        if (pb_moment_begin(&m, PB_WAY_ASLEEP) != PB_WAY_ASLEEP) {
            pb_sleep_ns(PB_NS_PER_MS / 2); /* not all tries at the one instant that it is awake */
            continue;
        }
        begun++;
        pb_sleep_ns(10 * PB_NS_PER_MS); /* it naps 2 ms: it has run by now */
        assert_int_equal(pb_moment_end(&m), -EAGAIN);
    }
    assert_true(begun > 10);
    pb_moment_close(&m);
    end(pid);
}

static uint64_t run_ns(pid_t pid)
{
    struct pb_moment m;
    uint64_t ns;

    assert_int_equal(pb_moment_open(pid, pid, &m), 0);
    pb_moment_begin(&m, 0); /* reads the schedule, and then refuses */
    ns = m.run_ns;
    pb_moment_close(&m);
    return ns;
}

static void one_that_runs_is_refused_or_stopped_and_goes_on(void **state)
{
    struct pb_moment m;
    pid_t pid = start(spin);

    open_after(pid, 30 * PB_NS_PER_MS, &m);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_ASLEEP), -EAGAIN);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
        assert_int_equal(pb_moment_end(&m), 0);
    }
    pb_moment_close(&m);
    uint64_t before = run_ns(pid);
    pb_sleep_ns(100 * PB_NS_PER_MS);
    assert_true(run_ns(pid) > before);
    end(pid);
}

/* Some kernels say "0 0 0" of every thread. */
static void who_is_not_counted_proves_nothing(void **state)
{
    struct pb_moment m;
    pid_t pid = start(sleep_long);

    open_after(pid, 30 * PB_NS_PER_MS, &m);
    close(m.schedstat_fd);
    m.schedstat_fd = memfd_create("schedstat", MFD_CLOEXEC);
    assert_int_equal(write(m.schedstat_fd, "0 0 0\n", 6), 6);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_ASLEEP), PB_WAY_ASLEEP);
    assert_int_equal(pb_moment_end(&m), -EAGAIN);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
    assert_int_equal(pb_moment_end(&m), 0);
    pb_moment_close(&m);
    end(pid);
}

static void a_stopped_process_stays_stopped(void **state)
{
    struct pb_native_threads threads;
    struct pb_moment m;
    pid_t pid = start(spin);

    kill(pid, SIGSTOP);
    open_after(pid, 30 * PB_NS_PER_MS, &m);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_ASLEEP), PB_WAY_ASLEEP);
    assert_int_equal(pb_moment_end(&m), 0);
    pb_moment_close(&m);
    assert_int_equal(pb_native_threads_read(pid, &threads, NULL), 0);
    assert_int_equal(threads.n, 1);
    assert_int_equal(threads.at[0].state, 'T');
    pb_native_threads_done(&threads);
    end(pid);
}

static void a_thread_that_is_gone_is_told(void **state)
{
    struct pb_moment m;
    pid_t pid = start(sleep_long);

    open_after(pid, 10 * PB_NS_PER_MS, &m);
    end(pid);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_ASLEEP | PB_WAY_STOPPED), -ESRCH);
    pb_moment_close(&m);
    assert_int_equal(pb_moment_open(pid, pid, &m), -ESRCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sleeper_proves_itself_and_names_its_call),
        cmocka_unit_test(one_that_woke_is_noticed),
        cmocka_unit_test(one_that_runs_is_refused_or_stopped_and_goes_on),
        cmocka_unit_test(who_is_not_counted_proves_nothing),
        cmocka_unit_test(a_stopped_process_stays_stopped),
        cmocka_unit_test(a_thread_that_is_gone_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
