/* Starting processes: a child that ends with its parent, one that nobody waits for, another program with the
 * streams, session and signals that it was to have. tsan: no: it forks. */
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/process.h"
#include "base/time.h"

#include "test.h"

static void says_how_a_child_ended(void **state)
{
    pid_t pid = pb_process_fork(0);
    if (pid == 0)
        _exit(7);
    assert_int_equal(pb_process_wait(pid), 7);
    assert_int_equal(pb_process_wait(pid), -ECHILD);
    pid = pb_process_fork(0);
    if (pid == 0)
        raise(SIGKILL);
    assert_int_equal(pb_process_wait(pid), 128 + SIGKILL);
}

static void a_child_ends_with_its_parent(void **state)
{
    int ends[2];
    char byte;

    assert_int_equal(pipe(ends), 0);
    pid_t pid = pb_process_fork(0);
    if (pid == 0) {
        pid_t child = pb_process_fork(SIGKILL);
        if (child == 0)
            for (;;)
                pause();
        raise(SIGKILL);
    }
    close(ends[1]); /* the child's child has the last writing end */
    assert_int_equal(pb_process_wait(pid), 128 + SIGKILL);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}

static void an_orphan_has_a_session_and_no_parent_of_ours(void **state)
{
    pid_t seen[2], us = getpid();
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    int r = pb_process_orphan();
    if (r == 0) {
        for (int i = 0; getppid() == us && i < 1000; i++)
            usleep(1000);
        seen[0] = getppid();
        seen[1] = getsid(0);
        _exit(write(ends[1], seen, sizeof(seen)) == sizeof(seen) ? 0 : 1);
    }
    assert_int_equal(r, 1);
    assert_int_equal(read(ends[0], seen, sizeof(seen)), sizeof(seen));
    assert_int_not_equal(seen[0], us);
    assert_int_not_equal(seen[1], getsid(0));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing to wait for */
    close(ends[0]);
    close(ends[1]);
}

/* What the program prints to its output and its errors. */
static void run(const char *const *argv, struct pb_process_plan plan, char *ret, size_t size)
{
    int out[2];
    size_t n = 0;
    ssize_t more;

    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    plan.argv = argv;
    plan.in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    plan.out = plan.errors = out[1];
    pid_t pid = pb_process_start(&plan);
    assert_true(pid > 0);
    close(out[1]);
    close(plan.in);
    while ((more = read(out[0], ret + n, size - 1 - n)) > 0)
        n += (size_t)more;
    ret[n] = '\0';
    close(out[0]);
    assert_int_equal(pb_process_wait(pid), 0);
}

static void a_program_gets_its_streams_folder_and_environment(void **state)
{
    static const char *const words[] = {"sh", "-c", "read x; echo \"$x$A\"; pwd; echo wrong >&2", NULL};
    static char *const environment[] = {"A=set", "PATH=/usr/bin:/bin", NULL};
    char text[256];

    run(words, (struct pb_process_plan){.search = true, .environment = environment, .folder = "/dev"}, text,
        sizeof(text));
    assert_string_equal(text, "set\n/dev\nwrong\n");
}

static void a_program_gets_a_group_or_a_session_and_usual_signals(void **state)
{
    static const char *const words[] = {
        "/bin/sh", "-c",
        "echo $$; cut -d' ' -f5,6 /proc/$$/stat; exec grep -E 'SigBlk|SigIgn' /proc/self/status", NULL};
    sigset_t one;
    char text[512];
    int pid, group, session;
    unsigned long long blocked, ignored;

    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, NULL);
    signal(SIGPIPE, SIG_IGN);
    for (int own = 0; own < 2; own++) {
        run(words, (struct pb_process_plan){.session = own}, text, sizeof(text));
        assert_int_equal(
            sscanf(text, "%d %d %d SigBlk: %llx SigIgn: %llx", &pid, &group, &session, &blocked, &ignored),
            5);
        assert_int_equal(group, pid);
        assert_int_equal(session == pid, own);
        assert_false(blocked || ignored & 1u << (SIGPIPE - 1));
    }
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    signal(SIGPIPE, SIG_DFL);
}

static void a_program_that_is_not_there_is_an_error(void **state)
{
    static const char *const nowhere[] = {"/nowhere/at-all", NULL}, *const unknown[] = {
                                                                        "no-such-program-on-the-path", NULL};

    assert_int_equal(pb_process_start(&(struct pb_process_plan){.argv = nowhere, .out = 1, .errors = 2}),
                     -ENOENT);
    assert_int_equal(
        pb_process_start(&(struct pb_process_plan){.argv = unknown, .search = true, .out = 1, .errors = 2}),
        -ENOENT);
    assert_int_equal(pb_process_start(&(struct pb_process_plan){
                         .argv = nowhere, .folder = "/nowhere", .out = 1, .errors = 2}),
                     -ENOENT);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_how_a_child_ended),
        cmocka_unit_test(a_child_ends_with_its_parent),
        cmocka_unit_test(an_orphan_has_a_session_and_no_parent_of_ours),
        cmocka_unit_test(a_program_gets_its_streams_folder_and_environment),
        cmocka_unit_test(a_program_gets_a_group_or_a_session_and_usual_signals),
        cmocka_unit_test(a_program_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
