/* Small parts of the agent that run in a program of ours as they do in the target: waking and starting
 * threads, the table of descriptors, locks.
 * tsan: no: a test makes locks anew while another thread may still let go of one, as a child of fork does. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "agent/core/fds.h"
#include "agent/core/lock.h"
#include "agent/core/own_memory.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"

#include "test.h"

static atomic_int done;
static int seen_fd, kept_fd, woken;

/* What the resident thread does first, in a thread of its own. */
static void *leave_and_wait(void *pipe_fd)
{
    char why[256] = "";

    if (pb_fds_begin(why, sizeof(why)) < 0)
        return NULL;
    seen_fd = fcntl((int)(intptr_t)pipe_fd, F_GETFD);
    kept_fd = pb_fd_keep(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (pb_wake_start() == 0) {
        struct pollfd polled = {.fd = pb_wake_fd(), .events = POLLIN};
        done = 1;
        woken = poll(&polled, 1, 10000);
        pb_wake_drain();
        woken += poll(&polled, 1, 0);
        pb_wake_stop();
    }
    pb_fd_close(kept_fd);
    done = 2;
    return NULL;
}

static void a_thread_leaves_the_table_and_is_woken_without_a_descriptor(void **state)
{
    pthread_t thread;
    int ends[2];
    (void)state;

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pthread_create(&thread, NULL, leave_and_wait, (void *)(intptr_t)ends[1]), 0);
    while (done < 1)
        usleep(1000);
    assert_int_equal(seen_fd, -1);
    assert_true(kept_fd > 2);
    /* The other table has no copy of the pipe: closing this end is the end. */
    close(ends[1]);
    char byte;
    assert_int_equal(read(ends[0], &byte, 1), 0);
    pb_wake();
    pthread_join(thread, NULL);
    assert_int_equal(woken, 1);
    assert_int_equal(done, 2);
    close(ends[0]);
}

static atomic_int started;

static void *run(void *argument)
{
    started += (int)(intptr_t)argument;
    return NULL;
}

static void what_is_asked_for_before_the_end_is_started(void **state)
{
    (void)state;

    uint32_t number = pb_spawn_begin();
    for (int i = 0; i < 32; i++)
        assert_int_equal(pb_spawn(run, NULL, (void *)(intptr_t)1), 0);
    assert_int_equal(pb_spawn(run, NULL, NULL), -EAGAIN);
    assert_int_equal(pb_spawn_start(number), 0);
    while (started < 32)
        usleep(1000);
    assert_int_equal(pb_spawn(run, NULL, (void *)(intptr_t)100), 0);
    pb_spawn_end(number);
    while (started < 132)
        usleep(1000);
}

static void a_forked_child_forgets_locks_that_others_hold(void **state)
{
    (void)state;

    pb_lock(PB_LOCK_JOBS);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        pb_locks_forget();
        pb_spawn_forget();
        for (int lock = 0; lock < PB_LOCKS; lock++)
            pb_lock((enum pb_lock_rank)lock);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pb_unlock(PB_LOCK_JOBS);
}

#ifdef PB_CHECK_LOCKS
static void a_lock_out_of_order_aborts(void **state)
{
    (void)state;

    for (int first = 0; first < PB_LOCKS; first++)
        for (int second = 0; second < PB_LOCKS; second++) {
            pid_t child = fork();
            if (child == 0) {
                signal(SIGABRT, SIG_DFL);
                pb_lock((enum pb_lock_rank)first);
                pb_lock((enum pb_lock_rank)second);
                _exit(0);
            }
            int status;
            assert_int_equal(waitpid(child, &status, 0), child);
            if (second > first)
                assert_int_equal(status, 0);
            else
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        }
}
#endif

static bool is_readable(bool may_open)
{
    char text[] = "here", copy[sizeof(text)] = "";
    const struct iovec piece = {text, sizeof(text)};
    struct pb_own_memory memory;

    bool ret = pb_own_memory_begin(&memory, may_open) == 0 &&
               pb_own_memory_read_more(&memory, &piece, 1, copy) == sizeof(copy) && strcmp(copy, text) == 0;
    pb_own_memory_end(&memory);
    return ret;
}

/* From here on the process is killed for opening a file and for process_vm_readv. */
static int refuse_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

    return prctl(PR_SET_NO_NEW_PRIVS, 1ul, 0ul, 0ul, 0ul) == 0
               ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
               : -1;
}

/* Their descriptors would be in its table. */
static void threads_of_the_program_open_no_file_to_read_memory(void **state)
{
    const struct rlimit no_files = {0, 0};
    int status;
    (void)state;

    assert_true(is_readable(true));
    pid_t child = fork();
    if (child == 0) {
        bool is_free = prctl(PR_GET_SECCOMP, 0ul, 0ul, 0ul, 0ul) == 0; /* a container may have a filter */
        if (setrlimit(RLIMIT_NOFILE, &no_files) < 0 || is_readable(false) != is_free)
            _exit(1);
        _exit(refuse_calls() < 0 ? 2 : is_readable(false) ? 3 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_leaves_the_table_and_is_woken_without_a_descriptor),
        cmocka_unit_test(threads_of_the_program_open_no_file_to_read_memory),
        cmocka_unit_test(a_forked_child_forgets_locks_that_others_hold),
#ifdef PB_CHECK_LOCKS
        cmocka_unit_test(a_lock_out_of_order_aborts),
#endif
        cmocka_unit_test(what_is_asked_for_before_the_end_is_started), /* the last: its threads may go on */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
