/* A thread that moves data gets the whole count, whenever it is stopped and whatever becomes of us; a handler
 * and the end of the data end the transfer as they would have. tsan: no, its runtime has calls of its own. */
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "base/time.h"
#include "remote/interrupted.h"
#include "remote/trace.h"
#include "remote/transfer.h"

#include "transfer_calls.h"

#define STOPS  (TEST_SLOWNESS > 1 ? 10 : 60)
#define ABSENT 77

static pid_t start(const struct kind *kind, struct kit *k)
{
    *k = (struct kit){.fd = {-1, -1}};
    kind->make(k);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60 * TEST_SLOWNESS);
        close(k->fd[1]);
        _exit(kind->run(k));
    }
    assert_true(pid > 0);
    close(k->fd[0]); /* the end of the other process ends the data */
    k->fd[0] = -1;
    return pid;
}

static bool settles(pid_t pid, struct pb_waiting *ret)
{
    struct pb_waiting before = {.number = -1};

    for (int i = 0; i < 2000 * TEST_SLOWNESS; i++) {
        pb_sleep_ns(PB_NS_PER_MS);
        if (pb_waiting_read(pid, pid, -1, ret) != 1)
            continue;
        if (ret->number >= 0 && ret->number == before.number && ret->sp == before.sp)
            return true;
        before = *ret;
    }
    return false;
}

static int exit_of(pid_t pid)
{
    int status;

    for (int i = 0; i < 10000 * TEST_SLOWNESS; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        pb_sleep_ns(PB_NS_PER_MS);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -ETIMEDOUT;
}

/* As pb_trace_stop does it to a thread that entered the call after the look, which it would leave alone.
 * False: the process has ended. */
static bool stop_and_mend(pid_t pid, bool looks, struct pb_interrupted *ret)
{
    struct pb_waiting before = {.number = -1};
    siginfo_t info = {0};
    int status;

    if (looks)
        pb_waiting_read(pid, pid, -1, &before);
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0 || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) < 0)
        return false;
    if (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT | __WALL) < 0 ||
        info.si_code != CLD_TRAPPED)
        return false;
    assert_int_equal(waitpid(pid, &status, __WALL), pid);
    assert_int_equal(pb_interrupted_mend(pid, pid, &before, 0, ret), 0);
    assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
    return true;
}

static void a_stopped_transfer_moves_all(void **state)
{
    for (size_t i = 0; i < KINDS; i++) {
        struct pb_interrupted in = {.was = false};
        struct pb_waiting w;
        struct kit k;
        unsigned finished = 0;

        pid_t pid = start(&kinds[i], &k);
        kinds[i].some(&k);
        if (!settles(pid, &w)) {
            assert_int_equal(exit_of(pid), ABSENT);
            drop_kit(&k);
            continue;
        }
        assert_true(pb_transfer_waits(pid, pid, &w));
        assert_true(pb_transfer_may_finish(pid, pid, &w));
        for (int s = 0; s < STOPS; s++) {
            if (s % 4 == 0) /* it sleeps, has just been woken, or is somewhere between */
                pb_sleep_ns(PB_NS_PER_MS);
            if (!stop_and_mend(pid, s % 2, &in))
                break;
            finished += in.finishes;
            kinds[i].some(&k);
        }
        kinds[i].all(&k);
        int code = exit_of(pid);
        if (code != 0 || finished == 0)
            print_error("%s: %d, finished %u\n", kinds[i].name, code, finished);
        assert_int_equal(code, 0);
        assert_true(finished > 0);
        drop_kit(&k);
    }
}

static void a_thread_seen_in_a_transfer_is_not_stopped(void **state)
{
    for (size_t i = 0; i < KINDS; i++) {
        struct pb_waiting w;
        struct kit k;
        int signal;

        pid_t pid = start(&kinds[i], &k);
        kinds[i].some(&k);
        if (settles(pid, &w))
            assert_int_equal(pb_trace_stop(pid, pid, -1, PB_NS_PER_S, &signal), -EINPROGRESS);
        kinds[i].all(&k);
        int code = exit_of(pid);
        assert_true(code == 0 || code == ABSENT);
        drop_kit(&k);
    }
}

/* The tool is killed as soon as the thread has been made to finish. */
static void a_transfer_is_finished_without_us(void **state)
{
    for (size_t i = 0; i < KINDS; i++) {
        struct pb_waiting w;
        struct kit k;

        pid_t pid = start(&kinds[i], &k);
        kinds[i].some(&k);
        if (settles(pid, &w)) {
            pid_t tool = fork();
            if (tool == 0) {
                struct pb_interrupted in;
                int status;
                ptrace(PTRACE_SEIZE, pid, NULL, NULL);
                ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
                waitpid(pid, &status, __WALL);
                pb_interrupted_mend(pid, pid, &w, 0, &in);
                _exit(in.finishes ? 0 : 1);
            }
            assert_int_equal(exit_of(tool), 0);
            assert_true(settles(pid, &w));
        }
        kinds[i].all(&k);
        int code = exit_of(pid);
        if (code != 0 && code != ABSENT)
            print_error("%s: %d\n", kinds[i].name, code);
        assert_true(code == 0 || code == ABSENT);
        drop_kit(&k);
    }
}

static void note_signal(int number)
{
    (void)number;
}

/* Written by the child. */
static long *moved;

static int write_and_tell(struct kit *k)
{
    *moved = write(k->fd[0], data, SIZE);
    return *moved < 0 ? errno : 0;
}

/* The right result is what had been moved: exactly what is in the pipe. */
static void a_handler_ends_the_rest(void **state)
{
    static const struct kind pipe_kind = {"write", make_pipe, write_and_tell, take_some, take_all},
                             socket_kind = {"write", make_pair, write_and_tell, take_some, take_all};
    struct sigaction action = {.sa_handler = note_signal};

    sigaction(SIGUSR1, &action, NULL);
    for (int turn = 0; turn < 4; turn++) {
        const struct kind *kind = turn % 2 ? &socket_kind : &pipe_kind;
        struct pb_interrupted in = {.was = false};
        struct pb_waiting w;
        struct kit k;

        pid_t pid = start(kind, &k);
        assert_true(settles(pid, &w));
        if (turn < 2) { /* at the stop itself: it comes while the thread is held */
            struct pb_waiting before = w;
            int status;
            assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
            assert_int_equal(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
            assert_int_equal(waitpid(pid, &status, __WALL), pid);
            assert_int_equal(kill(pid, SIGUSR1), 0);
            assert_int_equal(pb_interrupted_mend(pid, pid, &before, 0, &in), 0);
            assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
        } else { /* later: in the rest, of which something was moved meanwhile */
            assert_true(stop_and_mend(pid, true, &in));
            assert_true(in.finishes);
            for (int i = 0; i < turn; i++)
                take_some(&k);
            assert_true(settles(pid, &w));
            assert_int_equal(kill(pid, SIGUSR1), 0);
        }
        assert_int_equal(exit_of(pid), 0);
        while (take(&k, SIZE, false))
            ;
        assert_true(*moved > 0 && *moved < SIZE);
        assert_int_equal(k.at, *moved);
        drop_kit(&k);
    }
    signal(SIGUSR1, SIG_DFL);
}

/* A socket whose other end is gone: no signal, as where a part has been sent. */
static void the_end_of_the_reader_ends_the_rest(void **state)
{
    static const struct kind kind = {"write", make_pair, write_and_tell, take_some, take_all};
    struct pb_interrupted in;
    struct pb_waiting w;
    struct kit k;

    pid_t pid = start(&kind, &k);
    assert_true(settles(pid, &w));
    assert_true(stop_and_mend(pid, true, &in));
    assert_true(in.finishes);
    assert_true(settles(pid, &w));
    close(k.fd[1]);
    assert_int_equal(exit_of(pid), 0);
    assert_true(*moved > 0 && *moved < SIZE);
}

/* What the end of the data has cut short is not waited for. */
static int receive_and_tell(struct kit *k)
{
    *moved = recv(k->fd[0], received, SIZE, MSG_WAITALL);
    return is_data(received, 3 * PART, 0) ? 0 : 3;
}

static void the_end_of_the_data_ends_the_rest(void **state)
{
    static const struct kind kind = {"recv", make_pair, receive_and_tell, give_some, give_all};
    struct pb_interrupted in;
    struct pb_waiting w;
    struct kit k;

    pid_t pid = start(&kind, &k);
    give(&k, PART);
    assert_true(settles(pid, &w));
    assert_true(stop_and_mend(pid, true, &in));
    assert_true(in.finishes);
    give(&k, 2 * PART);
    assert_true(settles(pid, &w));
    close(k.fd[1]);
    assert_int_equal(exit_of(pid), 0);
    assert_int_equal(*moved, 3 * PART);
}

/* What is looked at again, or received with room for descriptors, cannot be continued: it is not borrowed. */
static int peek_all(struct kit *k)
{
    long n = recv(k->fd[0], received, SIZE, MSG_PEEK | MSG_WAITALL);
    return n > 0 && is_data(received, (size_t)n, 0) ? 0 : 3;
}

static int receive_descriptors(struct kit *k)
{
    char room[64];
    struct iovec v = {received, SIZE};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    long n = recvmsg(k->fd[0], &m, MSG_WAITALL);
    return n > 0 && is_data(received, (size_t)n, 0) ? 0 : 3;
}

static void what_cannot_be_finished_is_left_alone(void **state)
{
    static const struct kind of[] = {{"peek", make_tcp, peek_all, give_some, give_all},
                                     {"descriptors", make_pair, receive_descriptors, give_some, give_all}};
    for (size_t i = 0; i < 2; i++) {
        struct pb_interrupted in;
        struct pb_waiting w;
        struct kit k;
        int signal;

        pid_t pid = start(&of[i], &k);
        give(&k, PART);
        assert_true(settles(pid, &w));
        assert_true(pb_transfer_waits(pid, pid, &w));
        assert_false(pb_transfer_may_finish(pid, pid, &w));
        assert_int_equal(pb_trace_stop(pid, pid, -1, PB_NS_PER_S, &signal), -EINPROGRESS);
        assert_true(stop_and_mend(pid, true, &in)); /* all the same: its count is short, and its data right */
        assert_false(in.finishes);
        close(k.fd[1]);
        assert_int_equal(exit_of(pid), 0);
    }
}

static int write_all_it_may(struct kit *k)
{
    fcntl(k->fd[0], F_SETFL, O_NONBLOCK);
    long n = write(k->fd[0], data, SIZE);
    raise(SIGSTOP);
    return n > 0 && n < SIZE ? 0 : 1;
}

/* Stopped in the very instruction behind a call that ended early by itself: by a system call stop. */
static void a_short_count_of_its_own_stays(void **state)
{
    static const struct kind kind = {"write", make_pipe, write_all_it_may, take_some, take_all};
    struct pb_interrupted in;
    struct kit k;
    int status;

    pid_t pid = start(&kind, &k);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    kill(pid, SIGCONT);
    assert_int_equal(exit_of(pid), 0);
    drop_kit(&k);

    pid = start(&kind, &k);
    assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, (void *)PTRACE_O_TRACESYSGOOD), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
    for (bool seen = false; !seen;) {
        if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
            break;
        assert_int_equal(pb_interrupted_mend(pid, pid, NULL, 0, &in), 0);
        assert_false(in.finishes);
        seen = in.number == SYS_write && in.result > 0;
        assert_int_equal(ptrace(seen ? PTRACE_DETACH : PTRACE_SYSCALL, pid, NULL, NULL), 0);
    }
    for (int i = 0;
         i < 100 * TEST_SLOWNESS && kill(pid, SIGCONT) == 0 && waitpid(pid, &status, WNOHANG) != pid; i++)
        pb_sleep_ns(10 * PB_NS_PER_MS);
    assert_true(WIFEXITED(status) || WIFSTOPPED(status));
    kill(pid, SIGKILL);
    drop_kit(&k);
}

/* Data that the kernel makes: the thread runs, and no look shows in which call. */
static int make_random(struct kit *k)
{
    int urandom = open("/dev/urandom", O_RDONLY | O_CLOEXEC), zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < 40; i++)
        if (judge(getrandom(received, SIZE, 0), SIZE) || judge(read(urandom, received, SIZE), SIZE) ||
            judge(read(zero, received, SIZE), SIZE))
            return 1;
    return 0;
}

static void data_of_the_kernel_is_complete(void **state)
{
    static const struct kind kind = {"getrandom", make_pipe, make_random, take_some, take_all};
    struct pb_interrupted in = {.was = false};
    struct kit k;
    unsigned finished = 0;

    pid_t pid = start(&kind, &k);
    for (int i = 0; i < 400; i++) {
        if (!stop_and_mend(pid, false, &in))
            break;
        finished += in.finishes;
        pb_sleep_ns(PB_NS_PER_MS / 5);
    }
    assert_int_equal(exit_of(pid), 0);
    assert_true(finished > 0);
    drop_kit(&k);
}

/* All registers but that of the result are as they were. */
static int write_with_registers(struct kit *k)
{
#if defined(__x86_64__)
    register uint64_t number __asm__("rax") = SYS_write, a __asm__("rdi") = (uint64_t)k->fd[0],
                             b __asm__("rsi") = (uintptr_t)data, c __asm__("rdx") = SIZE,
                             d __asm__("r10") = 0x1111, e __asm__("r8") = 0x2222, f __asm__("r9") = 0x3333;
    __asm__ volatile("syscall"
                     : "+r"(number), "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f)
                     :
                     : "rcx", "r11", "memory");
    uint64_t result = number;
#else
    register uint64_t number __asm__("x8") = SYS_write, a __asm__("x0") = (uint64_t)k->fd[0],
                             b __asm__("x1") = (uintptr_t)data, c __asm__("x2") = SIZE,
                             d __asm__("x3") = 0x1111, e __asm__("x4") = 0x2222, f __asm__("x5") = 0x3333;
    __asm__ volatile("svc #0"
                     : "+r"(number), "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f)
                     :
                     : "memory");
    uint64_t result = a;
    a = (uint64_t)k->fd[0];
    if (number != SYS_write)
        return 5;
#endif
    if (a != (uint64_t)k->fd[0] || b != (uintptr_t)data || c != SIZE || d != 0x1111 || e != 0x2222 ||
        f != 0x3333)
        return 3;
    return judge((long)result, SIZE);
}

static void registers_are_kept(void **state)
{
    static const struct kind of[] = {{"pipe", make_pipe, write_with_registers, take_some, take_all},
                                     {"socket", make_pair, write_with_registers, take_some, take_all}};
    for (size_t i = 0; i < 2; i++) {
        struct pb_interrupted in;
        struct pb_waiting w;
        struct kit k;
        pid_t pid = start(&of[i], &k);
        assert_true(settles(pid, &w));
        assert_true(stop_and_mend(pid, true, &in));
        assert_true(in.finishes);
        take_all(&k);
        assert_int_equal(exit_of(pid), 0);
        drop_kit(&k);
    }
}

static int setup(void **state)
{
    fill_data();
    moved = mmap(NULL, sizeof(*moved), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    alarm(120 * TEST_SLOWNESS); /* nothing here may hang */
    return moved == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_transfer_moves_all),
        cmocka_unit_test(a_thread_seen_in_a_transfer_is_not_stopped),
        cmocka_unit_test(a_transfer_is_finished_without_us),
        cmocka_unit_test(a_handler_ends_the_rest),
        cmocka_unit_test(the_end_of_the_reader_ends_the_rest),
        cmocka_unit_test(the_end_of_the_data_ends_the_rest),
        cmocka_unit_test(what_cannot_be_finished_is_left_alone),
        cmocka_unit_test(a_short_count_of_its_own_stays),
        cmocka_unit_test(data_of_the_kernel_is_complete),
        cmocka_unit_test(registers_are_kept),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
