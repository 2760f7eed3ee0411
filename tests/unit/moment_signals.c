/* A program that is sampled gets its signals, in time and in number, and stops, goes on, execs and ends as if
 * nobody looked; whatever becomes of the sampler. tsan: no, its runtime holds signals back by itself. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/time.h"
#include "remote/moment.h"
#include "remote/threads.h"

#include "slow.h"
#include "test.h"

#define SIGNALS 20
#define DONE    7

/* Shared by the test and all that it forks. */
static struct shared {
    atomic_int ready, handled, sent, held;
    _Atomic pid_t tid, target;
    _Atomic uint64_t turns;
    uint64_t delay[SIGNALS];
} * shared;

static int setup(void **state)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    alarm(60 * TEST_SLOWNESS); /* nothing here may hang */
    return shared == MAP_FAILED ? -1 : 0;
}

static int teardown(void **state)
{
    alarm(0);
    return munmap(shared, sizeof(*shared));
}

static void count_signal(int number)
{
    shared->handled++;
}

static void handle(int number)
{
    struct sigaction action = {.sa_handler = count_signal};
    sigaction(number, &action, NULL);
}

static void spin_until_all_came(void)
{
    handle(SIGUSR1);
    shared->ready = 1;
    while (shared->handled < SIGNALS)
        shared->turns++;
    _exit(DONE);
}

static void sleep_until_all_came(void)
{
    handle(SIGUSR1);
    shared->ready = 1;
    while (shared->handled < SIGNALS)
        pb_sleep_ns(PB_NS_PER_MS);
    _exit(DONE);
}

static pid_t start(void (*run)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        run();
        _exit(1);
    }
    assert_true(pid > 0);
    return pid;
}

static bool wait_for(atomic_int *what, int value, unsigned ms)
{
    for (unsigned i = 0; i < ms * TEST_SLOWNESS && *what < value; i++)
        pb_sleep_ns(PB_NS_PER_MS);
    return *what >= value;
}

/* The status it ended with; -1: it did not, and is killed. */
static int status_of(pid_t pid, unsigned ms)
{
    int status;

    for (unsigned i = 0; i < ms * TEST_SLOWNESS; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid && !WIFSTOPPED(status))
            return status;
        pb_sleep_ns(PB_NS_PER_MS);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

static void assert_done(pid_t pid, unsigned ms)
{
    int status = status_of(pid, ms);
    assert_true(status >= 0 && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), DONE);
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* One after the other, so that none is merged into the one before; a process of its own: a sampler that
 * sleeps must not be in the way. */
static void send_all(void)
{
    for (int i = 0; i < SIGNALS; i++) {
        pb_sleep_ns(7 * PB_NS_PER_MS);
        uint64_t began = pb_now_ns();
        kill(shared->target, SIGUSR1);
        while (shared->handled <= i)
            pb_sleep_ns(PB_NS_PER_MS / 10);
        shared->delay[i] = pb_now_ns() - began;
        shared->sent++;
    }
    _exit(DONE);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* A busy machine may hold up one or the other; a sampler that holds signals back does it to most. */
static void assert_in_time(void)
{
    qsort(shared->delay, SIGNALS, sizeof(shared->delay[0]), by_size);
    assert_true(shared->delay[SIGNALS * 3 / 4] < 50 * PB_NS_PER_MS * TEST_SLOWNESS);
}

static void sample_while_signals_come(void (*run)(void), unsigned ways, uint64_t pause_ns)
{
    struct pb_moment m;

    pid_t pid = start(run);
    shared->target = pid;
    assert_true(wait_for(&shared->ready, 1, 5000));
    assert_int_equal(pb_moment_open(pid, pid, &m), 0);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
    assert_int_equal(pb_moment_end(&m), 0);
    pid_t sender = start(send_all);
    uint64_t end = pb_now_ns() + 20 * PB_NS_PER_S * TEST_SLOWNESS;
    while (!has_ended(pid) && pb_now_ns() < end) {
        if (pb_moment_begin(&m, ways) > 0)
            pb_moment_end(&m);
        if (pause_ns)
            pb_sleep_ns(pause_ns);
    }
    pb_moment_close(&m);
    assert_done(sender, 1000);
    assert_done(pid, 1000);
    assert_int_equal(shared->sent, SIGNALS);
    assert_in_time();
}

static void signals_arrive_while_it_is_stopped_all_the_time(void **state)
{
    sample_while_signals_come(spin_until_all_came, PB_WAY_STOPPED, 0);
}

static void signals_arrive_at_a_hundred_samples_a_second(void **state)
{
    sample_while_signals_come(spin_until_all_came, PB_WAY_ASLEEP | PB_WAY_STOPPED, 10 * PB_NS_PER_MS);
}

static void signals_do_not_wait_for_the_next_sample(void **state)
{
    sample_while_signals_come(spin_until_all_came, PB_WAY_ASLEEP | PB_WAY_STOPPED, PB_NS_PER_S);
}

static void signals_wake_a_sleeper_that_is_sampled(void **state)
{
    sample_while_signals_come(sleep_until_all_came, PB_WAY_STOPPED, 10 * PB_NS_PER_MS);
}

static char state_of(pid_t pid)
{
    struct pb_native_threads threads;

    assert_int_equal(pb_native_threads_read(pid, &threads, NULL), 0);
    char state = threads.at[0].state;
    pb_native_threads_done(&threads);
    return state;
}

static void stop_often(struct pb_moment *m, int times)
{
    for (int i = 0; i < times; i++) {
        assert_int_equal(pb_moment_begin(m, PB_WAY_STOPPED), PB_WAY_STOPPED);
        assert_int_equal(pb_moment_end(m), 0);
    }
}

static void it_stays_stopped_until_it_is_continued(void **state)
{
    struct pb_moment m;
    pid_t pid = start(spin_until_all_came);

    assert_true(wait_for(&shared->ready, 1, 5000));
    assert_int_equal(pb_moment_open(pid, pid, &m), 0);
    for (int round = 0; round < 20; round++) {
        stop_often(&m, 5);
        kill(pid, SIGSTOP);
        stop_often(&m, 20);
        for (int i = 0; i < 1000 && state_of(pid) != 'T'; i++)
            pb_sleep_ns(PB_NS_PER_MS);
        assert_int_equal(state_of(pid), 'T');
        uint64_t turns = shared->turns;
        stop_often(&m, 20);
        pb_sleep_ns(2 * PB_NS_PER_MS);
        assert_true(shared->turns == turns);
        /* Also where it is continued while we hold it. */
        assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
        kill(pid, SIGCONT);
        assert_int_equal(pb_moment_end(&m), 0);
        for (int i = 0; i < 2000 && shared->turns == turns; i++)
            pb_sleep_ns(PB_NS_PER_MS);
        assert_true(shared->turns > turns);
    }
    pb_moment_close(&m);
    kill(pid, SIGKILL);
    assert_true(WIFSIGNALED(status_of(pid, 1000)));
}

static void *exec_soon(void *arg)
{
    shared->tid = (pid_t)syscall(SYS_gettid);
    shared->ready = 1;
    for (int i = 0; i < 20000; i++)
        shared->turns++;
    execl("/bin/sh", "sh", "-c", "exit 7", NULL);
    return NULL;
}

static void exec_in_a_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, exec_soon, NULL);
    pthread_join(thread, NULL);
}

static void a_thread_may_exec_at_any_time(void **state)
{
    for (int round = 0; round < 60; round++) {
        struct pb_moment m;
        shared->ready = 0;
        pid_t pid = start(exec_in_a_thread);
        assert_true(wait_for(&shared->ready, 1, 5000));
        if (pb_moment_open(pid, shared->tid, &m) == 0) {
            for (int r = 0; r != -ESRCH;) {
                r = pb_moment_begin(&m, PB_WAY_STOPPED);
                if (r > 0)
                    pb_moment_end(&m);
            }
            pb_moment_close(&m);
        }
        assert_done(pid, 5000);
    }
}

/* Between the test and the target: its parent, who must be told of its end. */
static void wait_for_target(void)
{
    shared->target = start(spin_until_all_came);
    shared->held = 1;
    waitpid(shared->target, NULL, 0);
    _exit(DONE);
}

static void its_parent_hears_of_its_end(void **state)
{
    for (int round = 0; round < 20; round++) {
        struct pb_moment m;
        shared->ready = shared->held = 0;
        pid_t parent = start(wait_for_target);
        assert_true(wait_for(&shared->ready, 1, 5000) && wait_for(&shared->held, 1, 5000));
        assert_int_equal(pb_moment_open(shared->target, shared->target, &m), 0);
        assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
        kill(shared->target, SIGKILL);
        pb_moment_end(&m);
        assert_done(parent, 5000);
        assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), -ESRCH);
        pb_moment_close(&m);
    }
}

static sigjmp_buf back;

static void jump_back(int number)
{
    siglongjmp(back, 1);
}

static void fault_often(void)
{
    struct sigaction action = {.sa_handler = jump_back};
    int *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    sigaction(SIGSEGV, &action, NULL);
    shared->ready = 1;
    while (shared->handled < 3000) {
        if (sigsetjmp(back, 1) == 0)
            *(volatile int *)nowhere = 1;
        shared->handled++;
    }
    _exit(DONE);
}

static void a_fault_is_its_own_affair(void **state)
{
    struct pb_moment m;
    pid_t pid = start(fault_often);

    assert_true(wait_for(&shared->ready, 1, 5000));
    assert_int_equal(pb_moment_open(pid, pid, &m), 0);
    for (int r = 0; r != -ESRCH;) {
        r = pb_moment_begin(&m, PB_WAY_STOPPED);
        if (r > 0)
            pb_moment_end(&m);
    }
    pb_moment_close(&m);
    assert_done(pid, 5000);
}

static void count_queued(void)
{
    handle(SIGRTMIN);
    shared->ready = 1;
    for (;;)
        shared->turns++;
}

/* A sampler that has the target in the stop of a signal, and does nothing more. */
static void hold_in_a_signal(void)
{
    struct pb_moment m;

    pid_t pid = start(count_queued);
    shared->target = pid;
    wait_for(&shared->ready, 1, 5000);
    pb_moment_open(pid, pid, &m);
    for (;;) {
        if (pb_moment_begin(&m, PB_WAY_STOPPED) < 0)
            _exit(1);
        if (m.signal == SIGRTMIN) {
            shared->held = 1;
            pause();
        }
        pb_moment_end(&m);
    }
}

static void no_signal_is_lost_with_the_sampler(void **state)
{
    int sent = 0;
    pid_t sampler = start(hold_in_a_signal);

    assert_true(wait_for(&shared->ready, 1, 5000));
    uint64_t end = pb_now_ns() + 10 * PB_NS_PER_S * TEST_SLOWNESS;
    while (!shared->held && pb_now_ns() < end) {
        sent += kill(shared->target, SIGRTMIN) == 0;
        pb_sleep_ns(PB_NS_PER_MS / 20);
    }
    assert_true(shared->held);
    pb_sleep_ns(10 * PB_NS_PER_MS);
    assert_true(shared->handled < sent);
    kill(sampler, SIGKILL);
    assert_true(WIFSIGNALED(status_of(sampler, 1000)));
    bool all = wait_for(&shared->handled, sent, 5000);
    kill(shared->target, SIGKILL);
    assert_true(all);
}

/* While the child of a vfork runs, its parent cannot be stopped. */
static void wait_in_vfork(void)
{
    shared->ready = 1;
    pid_t pid = vfork();
    if (pid == 0) {
        syscall(SYS_nanosleep, &(struct timespec){.tv_sec = 3}, NULL);
        _exit(0);
    }
    shared->handled = 1;
    for (int i = 0; i < 100; i++) {
        pb_sleep_ns(PB_NS_PER_MS);
        shared->handled++;
    }
    _exit(DONE);
}

static void one_that_stops_late_is_let_go_at_once(void **state)
{
    struct pb_moment m;
    pid_t pid = start(wait_in_vfork);

    assert_true(wait_for(&shared->ready, 1, 5000));
    pb_sleep_ns(50 * PB_NS_PER_MS);
    assert_int_equal(pb_moment_open(pid, pid, &m), 0);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), -ETIMEDOUT);
    assert_int_equal(shared->handled, 0);
    assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), -EBUSY);
    assert_true(wait_for(&shared->handled, 1, 3000));
    assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
    assert_int_equal(pb_moment_end(&m), 0);
    pb_moment_close(&m);
    assert_done(pid, 2000);
}

static void spin_for_ever(void)
{
    shared->ready = 1;
    for (;;)
        shared->turns++;
}

static void ctrl_z_waits_until_the_thread_is_let_go(void **state)
{
    struct pb_moment m;
    pid_t pid = start(spin_for_ever);

    handle(SIGTSTP);
    assert_true(wait_for(&shared->ready, 1, 5000));
    assert_int_equal(pb_moment_open(pid, pid, &m), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), PB_WAY_STOPPED);
        raise(SIGTSTP);
        assert_int_equal(shared->handled, i);
        assert_int_equal(pb_moment_end(&m), 0);
        assert_int_equal(shared->handled, i + 1);
    }
    kill(pid, SIGKILL);
    assert_true(WIFSIGNALED(status_of(pid, 1000)));
    /* Nor does one that cannot be stopped keep it back. */
    assert_int_equal(pb_moment_begin(&m, PB_WAY_STOPPED), -ESRCH);
    raise(SIGTSTP);
    assert_int_equal(shared->handled, 4);
    pb_moment_close(&m);
    signal(SIGTSTP, SIG_DFL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(signals_arrive_while_it_is_stopped_all_the_time),
        TEST(signals_arrive_at_a_hundred_samples_a_second),
        TEST(signals_do_not_wait_for_the_next_sample),
        TEST(signals_wake_a_sleeper_that_is_sampled),
        TEST(it_stays_stopped_until_it_is_continued),
        TEST(a_thread_may_exec_at_any_time),
        TEST(its_parent_hears_of_its_end),
        TEST(a_fault_is_its_own_affair),
        TEST(no_signal_is_lost_with_the_sampler),
        TEST(one_that_stops_late_is_let_go_at_once),
        TEST(ctrl_z_waits_until_the_thread_is_let_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
