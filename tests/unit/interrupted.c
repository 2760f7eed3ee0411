/* System calls of a thread that is stopped come out as if nothing had been: none ends with EINTR, early, or
 * late. Each call waits in a process of its own. tsan: no, its runtime has calls of its own. */
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/wait.h>

#include "base/time.h"
#include "remote/interrupted.h"
#include "remote/trace.h"

#include "interrupted_calls.h"

/* aarch64's kernel has decided about a restart before a stop: a mended thread has not made the call yet. */
#ifdef __aarch64__
#define DECIDED true
#else
#define DECIDED false
#endif
#define STOPS (TEST_SLOWNESS > 1 ? 100 : 1000)

/* Of a call that did not wait: the kernel has none such, or (sendfile, before Linux 6.5) adds to the last
 * piece that a full socket holds. */
static void assert_absent(const struct kind *kind, struct kit *k, int code)
{
    bool added = kind->wait == wait_sendfile && code == 0;

    if (!added && code != ENOSYS)
        print_error("%s did not wait: %d\n", kind->name, code);
    assert_true(added || code == ENOSYS);
    drop_kit(kind, k);
}

static pid_t start(const struct kind *kind, struct kit *k)
{
    *k = (struct kit){.other = -1};
    kind->make(k);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LONG_S);
        int r = kind->wait(k);
        _exit(r < 0 ? -r : 0);
    }
    assert_true(pid > 0);
    return pid;
}

/* In a system call, off its CPU, twice in a row at the same place. */
static bool settles(pid_t pid, struct pb_waiting *ret)
{
    struct pb_waiting before = {.number = -1};

    for (int i = 0; i < 2000 * TEST_SLOWNESS; i++) {
        pb_sleep_ns(PB_NS_PER_MS);
        if (pb_waiting_read(pid, pid, -1, ret) != 1)
            continue;
        if (ret->number >= 0 && ret->number == before.number && ret->pc == before.pc)
            return true;
        before = *ret;
    }
    return false;
}

static int exit_of(pid_t pid)
{
    int status;

    for (int i = 0; i < 5000 * TEST_SLOWNESS; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        pb_sleep_ns(PB_NS_PER_MS);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -ETIMEDOUT;
}

/* What pb_trace_stop does, for a thread that it would leave alone; looks: whether it is looked at before, as
 * one that has entered the call since is not. A signal comes while it is stopped, after it was mended; before
 * where the kernel has DECIDED. */
static void stop_and_mend(pid_t pid, bool looks, int signal, struct pb_interrupted *ret)
{
    struct pb_waiting before = {.number = -1};
    int status;

    if (looks)
        pb_waiting_read(pid, pid, -1, &before);
    assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
    assert_int_equal(waitpid(pid, &status, __WALL), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(kill(pid, DECIDED ? signal : 0), 0);
    assert_int_equal(pb_interrupted_mend(pid, pid, &before, 0, ret), 0);
    assert_int_equal(kill(pid, DECIDED ? 0 : signal), 0);
    assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
}

static void no_call_ends_with_eintr(void **state)
{
    for (size_t i = 0; i < KINDS; i++) {
        struct kit k;
        struct pb_waiting w;
        struct pb_interrupted in = {.was = false};
        unsigned mended = 0, finite = 0;

        pid_t pid = start(&kinds[i], &k);
        if (!settles(pid, &w)) {
            assert_absent(&kinds[i], &k, exit_of(pid));
            continue;
        }
        for (int s = 0; s < STOPS; s++) {
            stop_and_mend(pid, s % 2, 0, &in);
            mended += in.was;
            finite += in.finite;
            if (s % 50 == 0 && !settles(pid, &w)) { /* let it get back into the call */
                print_error("%s does not wait after %d stops\n", kinds[i].name, s + 1);
                fail();
            }
        }
        assert_true(settles(pid, &w));
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
        assert_true(pb_waiting_would_begin_anew(pid, &w) == kinds[i].finite);
        kinds[i].end(&k, pid);
        int code = exit_of(pid);
        if (code != 0)
            print_error("%s: %d\n", kinds[i].name, code);
        /* io_pgetevents is restarted by the kernel itself. */
        bool ours = kinds[i].wait != wait_paio;
        bool begins_anew = kinds[i].finite && (ours || !DECIDED);
        if ((mended > 0) != ours || (finite > 0) != begins_anew)
            print_error("%s: mended %u, finite %u\n", kinds[i].name, mended, finite);
        assert_int_equal(code, 0);
        assert_true((mended > 0) == ours);
        assert_true((finite > 0) == begins_anew);
        drop_kit(&kinds[i], &k);
    }
}

static void note_signal(int number)
{
}

/* The other half: who has a handler gets the EINTR that is his. */
static void a_handler_still_ends_the_call(void **state)
{
    struct sigaction action = {.sa_handler = note_signal};

    sigaction(SIGUSR1, &action, NULL);
    for (size_t i = 0; i < KINDS; i++) {
        struct kit k;
        struct pb_waiting w;

        if (kinds[i].wait == wait_epoll_mask) /* blocks it */
            continue;
        pid_t pid = start(&kinds[i], &k);
        if (settles(pid, &w)) {
            stop_and_mend(pid, true, 0, NULL);
            assert_true(settles(pid, &w));
            stop_and_mend(pid, false, SIGUSR1, NULL);
            int code = exit_of(pid);
            if (code != EINTR)
                print_error("%s: %d\n", kinds[i].name, code);
            assert_int_equal(code, EINTR);
            drop_kit(&kinds[i], &k);
        } else {
            assert_absent(&kinds[i], &k, exit_of(pid));
        }
    }
    signal(SIGUSR1, SIG_DFL);
}

/* Goes on by a request, and waits for the stop that follows. */
static void step_to(pid_t pid, enum __ptrace_request request, int signal, int expected)
{
    int status;

    assert_int_equal(ptrace(request, pid, NULL, (void *)(intptr_t)signal), 0);
    assert_int_equal(waitpid(pid, &status, __WALL), pid);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(WSTOPSIG(status), expected);
}

/* It comes back from the handler to the end of the call, whose result is EINTR as after a stop of ours. */
static void a_call_that_a_handler_has_ended_is_left_alone(void **state)
{
    struct sigaction action = {.sa_handler = note_signal};
    const int call = SIGTRAP | 0x80;
    struct pb_interrupted in;
    struct pb_waiting w;
    struct kit k;
    int status;

    sigaction(SIGUSR1, &action, NULL);
    pid_t pid = start(&kinds[0], &k);
    assert_true(settles(pid, &w));
    assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, (void *)PTRACE_O_TRACESYSGOOD), 0);
    assert_int_equal(kill(pid, SIGUSR1), 0);
    assert_int_equal(waitpid(pid, &status, __WALL), pid);
    step_to(pid, PTRACE_SYSCALL, SIGUSR1, call); /* into sigreturn */
    step_to(pid, PTRACE_SYSCALL, 0, call);
    assert_int_equal(pb_interrupted_mend(pid, pid, NULL, 0, &in), 0);
    assert_false(in.was);
    assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
    assert_int_equal(exit_of(pid), EINTR);
    drop_kit(&kinds[0], &k);
    signal(SIGUSR1, SIG_DFL);
}

static void an_ignored_signal_ends_no_call(void **state)
{
    for (size_t i = 0; i < KINDS; i++) {
        struct kit k;
        struct pb_waiting w;

        if (kinds[i].wait == wait_epoll_mask) /* blocks it */
            continue;
        pid_t pid = start(&kinds[i], &k);
        if (settles(pid, &w)) {
            /* A traced thread is woken even by a signal that it ignores. */
            assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
            assert_int_equal(kill(pid, SIGWINCH), 0);
            assert_int_equal(waitpid(pid, NULL, __WALL), pid);
            assert_int_equal(pb_interrupted_mend(pid, pid, &w, SIGWINCH, NULL), 0);
            assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, (void *)(intptr_t)SIGWINCH), 0);
            bool back = settles(pid, &w);
            if (!back)
                print_error("%s ended\n", kinds[i].name);
            assert_true(back);
            kinds[i].end(&k, pid);
            int code = exit_of(pid);
            if (code != 0)
                print_error("%s: %d\n", kinds[i].name, code);
            assert_int_equal(code, 0);
            drop_kit(&kinds[i], &k);
        } else {
            assert_absent(&kinds[i], &k, exit_of(pid));
        }
    }
}

/* Calls that keep what is left of their time: the kernel's own restart. */
static int keep_nanosleep(const struct timespec *t)
{
    return result_of(nanosleep(t, NULL));
}

static int keep_poll(const struct timespec *t)
{
    return result_of(poll(NULL, 0, (int)(t->tv_nsec / 1000000)));
}

static int keep_ppoll(const struct timespec *t)
{
    return result_of(ppoll(NULL, 0, t, NULL));
}

static int keep_select(const struct timespec *t)
{
    struct timeval limit = {.tv_usec = t->tv_nsec / 1000};
    return result_of(select(0, NULL, NULL, NULL, &limit));
}

static int keep_futex(const struct timespec *t)
{
    static uint32_t word;
    long r = syscall(SYS_futex, &word, FUTEX_WAIT, 0, t, NULL, 0);
    return r < 0 && errno == ETIMEDOUT ? 0 : result_of(r);
}

static int (*const keepers[])(const struct timespec *) = {keep_nanosleep, keep_poll, keep_ppoll, keep_select,
                                                          keep_futex};

/* Written by the child: how long it waited, and the result. */
static struct report {
    uint64_t ns;
    int result;
} * report;

static pid_t start_keeper(size_t i, long ms)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct timespec t = {.tv_nsec = ms * 1000000};
        uint64_t began = pb_now_ns();
        report->result = keepers[i](&t);
        report->ns = pb_now_ns() - began;
        _exit(0);
    }
    assert_true(pid > 0);
    return pid;
}

static void what_keeps_its_time_ends_in_time(void **state)
{
    for (size_t i = 0; i < sizeof(keepers) / sizeof(keepers[0]); i++) {
        const uint64_t asked = 200 * PB_NS_PER_MS;
        uint64_t best = UINT64_MAX;

        /* A machine that is busy may wake anybody late: the best of three. */
        for (int turn = 0; turn < 3; turn++) {
            pid_t pid = start_keeper(i, 200);
            struct pb_waiting w;
            int signal;
            *report = (struct report){0};
            if (settles(pid, &w))
                for (int s = 0; s < STOPS; s++)
                    if (pb_trace_stop(pid, pid, -1, PB_NS_PER_S, &signal) == 0)
                        pb_trace_let_go(pid, pid, signal);
            assert_int_equal(exit_of(pid), 0);
            assert_int_equal(report->result, 0);
            assert_true(report->ns >= asked);
            best = report->ns < best ? report->ns : best;
        }
        assert_true(best < asked + 10 * PB_NS_PER_MS * TEST_SLOWNESS);
    }
}

static void damaged_text_is_no_waiting(void **state)
{
    struct pb_waiting w;

    assert_true(pb_waiting_parse(&w, "232 0x4 0x7f 0x20 0xffffffff 0x0 0x8 0x7ffc0010 0x7f42\n"));
    assert_int_equal(w.number, 232);
    assert_int_equal(w.args[0], 4);
    assert_int_equal(w.args[5], 8);
    assert_int_equal(w.sp, 0x7ffc0010);
    assert_int_equal(w.pc, 0x7f42);
    assert_true(pb_waiting_parse(&w, "-1 0x7ffc0010 0x7f42"));
    assert_int_equal(w.number, -1);
    assert_int_equal(w.args[0], 0);
    static const char *const others[] = {"running\n", "", "-", "-1", "-1 0x1", "232", "0x1 0x2", "\n"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(pb_waiting_parse(&w, others[i]));
}

static int setup(void **state)
{
    report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    alarm(120 * TEST_SLOWNESS); /* nothing here may hang */
    return report == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_text_is_no_waiting),
        cmocka_unit_test(no_call_ends_with_eintr),
        cmocka_unit_test(a_handler_still_ends_the_call),
        cmocka_unit_test(an_ignored_signal_ends_no_call),
        cmocka_unit_test(what_keeps_its_time_ends_in_time),
        cmocka_unit_test(a_call_that_a_handler_has_ended_is_left_alone),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
