/* Questions about processes that hang, die or lie: each is given up at its deadline or when it is cancelled,
 * the others are answered, and several threads of one caller may ask at once.
 *
 * The process that hangs is a real one: a page of a thread's stack is in the hands of a userfaultfd that
 * nobody serves, so whoever reads that memory sleeps in the kernel, as with a file system that is gone.
 *
 * tsan: no, its run time cannot go on in a child of a program with threads. AddressSanitizer's allocator does
 * not get its locks in order over a fork beside threads: that test is skipped there. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "ask/memory.h"
#include "ask/process_settings.h"
#include "ask/sources.h"
#include "ask/stacks.h"
#include "ask/targets.h"
#include "ask/task.h"
#include "base/time.h"

#include "engine_test.h"
#include "slow.h"

enum { STACK = 256 << 10, GENEROUS_MS = 20000 * TEST_SLOWNESS, SHORT_MS = 3000 };

static const struct pb_stacks_options native = {.native = true, .native_if_alone = true};

/* --- targets --- */

static void *sleep_for_ever(void *arg)
{
    for (;;)
        pause();
    return NULL;
}

/* Whoever reads this memory from now on waits for ever. False: this machine does not let us. */
static bool take_away(void *memory, size_t size)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register whole = {.range = {(uint64_t)(uintptr_t)memory, size},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};

    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &whole) == 0 &&
           madvise(memory, size, MADV_DONTNEED) == 0;
}

static void be_target(bool hangs, int ready)
{
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attr;
    pthread_t thread;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, STACK);
    pthread_create(&thread, &attr, sleep_for_ever, NULL);
    pb_sleep_ns(100 * PB_NS_PER_MS); /* it sleeps in the kernel by now, and needs its stack no more */
    char answer = !hangs || take_away(stack, STACK) ? 'y' : 'n';
    if (write(ready, &answer, 1) != 1)
        _exit(1);
    sleep_for_ever(NULL);
}

/* 0: this machine cannot have such a process. */
static pid_t start_target(bool hangs)
{
    char answer = 'n';
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        be_target(hangs, ends[1]);
    close(ends[1]);
    assert_int_equal(read(ends[0], &answer, 1), 1);
    close(ends[0]);
    if (answer == 'y')
        return pid;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}

static void end_target(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static struct pb_target target_of(pid_t pid)
{
    struct pb_target t = {.pid = pid};
    pb_target_label(&t);
    return t;
}

/* --- tests --- */

static void one_that_hangs_holds_up_no_other(void **state)
{
    pid_t first = start_target(false), hung = start_target(true), last = start_target(false);
    struct pb_target at[] = {target_of(first), target_of(hung), target_of(last)};
    struct pb_stacks_answer answers[3] = {0};
    const struct pb_ask ask = {.archive = "none", .limit_ms = SHORT_MS};

    if (!hung) {
        end_target(first);
        end_target(last);
        skip();
    }
    uint64_t began = pb_now_ns();
    assert_int_equal(
        pb_stacks_ask(&ask, &(struct pb_targets){.at = at, .n = 3}, &native, PB_WAITS_MAIN, answers), 0);
    assert_true(pb_now_ns() - began < 5ull * SHORT_MS * PB_NS_PER_MS);
    assert_int_equal(answers[0].result, 0);
    assert_int_equal(answers[1].result, -ETIMEDOUT);
    assert_int_equal(answers[2].result, 0);
    assert_non_null(strstr(answers[1].err.text, "timed out"));
    assert_null(answers[1].stacks);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(answers[i].stacks->pid, at[i].pid);
        assert_int_equal(answers[i].stacks->n, 2);
        assert_true(answers[i].stacks->threads[0].nnatives > 0);
    }
    pb_stacks_answers_done(answers, 3);
    /* No child is left: neither one that runs nor one that nobody waited for. */
    end_target(first);
    end_target(hung);
    end_target(last);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* --- a process whose environment cannot be read, as ps finds them where a driver hangs --- */

#define MARK "a-process-of-the-unit-test-of-ask-tasks"
enum { FILLED = 64 << 10 };

/* In the new program: takes away a page that holds nothing but environment, then sleeps. */
static void hang_environment(bool hangs)
{
    char text[4096], *at = text;
    unsigned long start = 0, end = 0;
    long page = sysconf(_SC_PAGESIZE);

    int fd = open("/proc/self/stat", O_RDONLY);
    ssize_t n = read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    at = strrchr(text, ')');
    /* Fields 50 and 51; the third follows the name. */
    for (int field = 2; at && field < 51; field++) {
        at = strchr(at + 1, ' ');
        if (field == 49 && at)
            start = strtoul(at, NULL, 10);
        if (field == 50 && at)
            end = strtoul(at, NULL, 10);
    }
    uintptr_t from = (start + (unsigned long)page) & ~((unsigned long)page - 1);
    char answer = 'n';
    if (!hangs || (from + STACK / 16 <= end && take_away((void *)from, STACK / 16)))
        answer = 'y';
    if (write(STDOUT_FILENO, &answer, 1) == 1)
        sleep_for_ever(NULL);
}

/* 0: this machine cannot have such a process. */
static pid_t start_marked(bool hangs)
{
    static char filled[FILLED + 8] = "FILLED=";
    char answer = 'n';
    int ends[2];

    memset(filled + 7, 'x', FILLED);
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDOUT_FILENO);
        execve("/proc/self/exe", (char *[]){"unit", hangs ? "hangs" : "answers", MARK, NULL},
               (char *[]){filled, "RANK=3", NULL});
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &answer, 1), 1);
    close(ends[0]);
    if (answer == 'y')
        return pid;
    end_target(pid);
    return 0;
}

static void a_pattern_finds_a_process_that_hangs_and_its_neighbours(void **state)
{
    const struct pb_ask ask = {.archive = "none"};
    pid_t good = start_marked(false), hung = start_marked(true);
    struct pb_targets found = {0};
    struct pb_err err = {0};
    bool good_found = false, hung_found = false;

    if (!hung) {
        end_target(good);
        skip();
    }
    uint64_t began = pb_now_ns();
    assert_int_equal(pb_targets_resolve(&ask, MARK, true, false, &found, &err), 0);
    assert_true(pb_now_ns() - began < 20 * PB_NS_PER_S * TEST_SLOWNESS);
    for (size_t i = 0; i < found.n; i++) {
        good_found |= found.at[i].pid == good && strcmp(found.at[i].label, "rank 3") == 0;
        hung_found |= found.at[i].pid == hung && strncmp(found.at[i].label, "pid ", 4) == 0;
    }
    /* One of them may be Python, for all that can be known; the other is not. */
    assert_true(hung_found);
    assert_true(good_found || found.n == 1);
    pb_targets_done(&found);
    end_target(good);
    end_target(hung);
}

/* --- what is asked to end before it is killed --- */

/* Goes on until SIGTERM comes, and then says so; with arg, not even then. */
static int end_when_told(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    sigset_t term;
    int number;

    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    do
        sigwait(&term, &number);
    while (arg);
    return pb_fail(err, -EINTR, "put back");
}

static int take_longer(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    pb_task_extend(room, GENEROUS_MS);
    pb_sleep_ns(300 * PB_NS_PER_MS);
    return 7;
}

static void what_is_to_put_things_back_is_told_before_it_is_killed(void **state)
{
    int wanted_no_more = eventfd(1, EFD_CLOEXEC);
    const struct pb_ask cancelled = {.cancel = &wanted_no_more};
    struct pb_task tasks[] = {{.work = end_when_told, .limit_ms = 100, .gentle = true},
                              {.work = end_when_told, .limit_ms = 100, .gentle = true, .arg = tasks},
                              {.work = end_when_told, .limit_ms = 100},
                              {.work = take_longer, .limit_ms = 100, .gentle = true}};

    uint64_t began = pb_now_ns();
    pb_tasks_run(NULL, tasks, 4, 0);
    assert_true(pb_now_ns() - began < 20 * PB_NS_PER_S * TEST_SLOWNESS);
    assert_int_equal(tasks[0].result, -EINTR);
    assert_string_equal(tasks[0].err.text, "put back");
    assert_int_equal(tasks[1].result, -ETIMEDOUT);
    assert_int_equal(tasks[2].result, -ETIMEDOUT);
    assert_string_equal(tasks[1].err.text, "timed out: no answer within 100 ms");
    assert_int_equal(tasks[3].result, 7);
    pb_room_free(tasks[3].room);

    /* The caller wants no answer any more: the same, and the wait for it costs no CPU. */
    struct pb_task one = {.work = end_when_told, .limit_ms = GENEROUS_MS, .gentle = true, .arg = tasks};
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    assert_int_equal(pb_task_run(&cancelled, &one, NULL), -ECANCELED);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    assert_true((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 < 500);
    close(wanted_no_more);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* What a caller has and no question may change. */
struct state {
    void (*handlers[NSIG])(int);
    int flags[NSIG];
    int blocked[NSIG];
    struct rlimit files, memory;
    int priority;
    mode_t umask;
    char cwd[256];
};

static void read_state(struct state *s)
{
    memset(s, 0, sizeof(*s));
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    for (int i = 1; i < NSIG; i++) {
        struct sigaction found;
        if (sigaction(i, NULL, &found) < 0)
            continue;
        s->handlers[i] = found.sa_handler;
        s->flags[i] = found.sa_flags;
        s->blocked[i] = sigismember(&mask, i);
    }
    getrlimit(RLIMIT_NOFILE, &s->files);
    getrlimit(RLIMIT_AS, &s->memory);
    s->priority = getpriority(PRIO_PROCESS, 0);
    s->umask = umask(0);
    umask(s->umask);
    assert_non_null(getcwd(s->cwd, sizeof(s->cwd)));
}

struct asker {
    pid_t pid;
    const int *cancel;
    unsigned limit_ms;
    int result;
    char said[512];
};

static void *ask_stacks(void *arg)
{
    struct asker *a = arg;
    const struct pb_ask ask = {.archive = "none", .limit_ms = a->limit_ms, .cancel = a->cancel};
    struct pb_target target = target_of(a->pid);
    struct pb_stacks_answer answer = {0};

    pb_stacks_ask(&ask, &(struct pb_targets){.at = &target, .n = 1}, &native, PB_WAITS_MAIN, &answer);
    a->result = answer.result;
    snprintf(a->said, sizeof(a->said), "%s", answer.err.text);
    pb_stacks_answers_done(&answer, 1);
    return NULL;
}

static int ask_memory(const struct pb_targets *targets, struct pb_err *err)
{
    const struct pb_ask asked = {.archive = "none", .limit_ms = GENEROUS_MS};
    struct pb_memory_answer answer;

    int r = pb_memory_ask(&asked, targets, &answer);
    *err = answer.err;
    if (r == 0)
        r = answer.result;
    return r == 0 && !(answer.memory.rss > 0) ? -EPROTO : r;
}

/* Every kind of question, again and again, of its own target. */
static void *ask_everything(void *arg)
{
    struct asker *a = arg;
    const struct pb_ask ask = {.archive = "none", .limit_ms = GENEROUS_MS};
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)a->pid);
    for (int i = 0; i < 5 && a->result == 0; i++) {
        struct pb_err err = {0};
        struct pb_targets targets = {0};
        struct pb_query_sources sources = {0};
        struct pb_settings settings;
        struct asker stacks = {.pid = a->pid, .limit_ms = GENEROUS_MS};

        a->result = pb_targets_resolve(&ask, text, false, false, &targets, &err);
        if (a->result == 0 && (targets.n != 1 || targets.at[0].pid != a->pid))
            a->result = -EPROTO;
        if (a->result == 0)
            a->result = pb_settings_of(&ask, &targets.at[0], &settings, &err);
        if (a->result == 0 && (a->result = pb_sources_open(&ask, &targets, &sources, &err)) == 0)
            pb_query_sources_done(&sources);
        if (a->result == 0) {
            ask_stacks(&stacks);
            a->result = stacks.result;
            snprintf(err.text, sizeof(err.text), "%s", stacks.said);
        }
        if (a->result == 0 && i == 0)
            a->result = ask_memory(&targets, &err);
        snprintf(a->said, sizeof(a->said), "%s", err.text);
        pb_targets_done(&targets);
    }
    return NULL;
}

static void threads_ask_at_once_and_one_is_cancelled(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    pid_t pids[] = {start_target(false), start_target(false)}, hung = start_target(true);
    struct asker askers[2] = {{.pid = pids[0]}, {.pid = pids[1]}};
    struct state before, after;
    pthread_t threads[3];
    int cancel[2];

    assert_int_equal(pipe2(cancel, O_CLOEXEC), 0);
    struct asker given_up = {.pid = hung, .cancel = &cancel[0], .limit_ms = GENEROUS_MS};
    read_state(&before);
    uint64_t began = pb_now_ns();
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_everything, &askers[i]), 0);
    if (hung) {
        assert_int_equal(pthread_create(&threads[2], NULL, ask_stacks, &given_up), 0);
        pb_sleep_ns(300 * PB_NS_PER_MS);
        close(cancel[1]); /* the client has closed its connection */
        pthread_join(threads[2], NULL);
        assert_int_equal(given_up.result, -ECANCELED);
        assert_true(pb_now_ns() - began < GENEROUS_MS / 2 * PB_NS_PER_MS);
        assert_non_null(strstr(given_up.said, "cancelled"));
        end_target(hung);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_string_equal(askers[i].said, "");
        assert_int_equal(askers[i].result, 0);
        end_target(pids[i]);
    }
    read_state(&after);
    assert_memory_equal(&before, &after, sizeof(before));
    close(cancel[0]);
}

static int die(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    raise(SIGSEGV);
    return 0;
}

static int fill(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    size_t n = 0;

    pb_ask_note(ask, "a note of %s", (const char *)arg);
    while (pb_room_alloc(room, 1000))
        n++;
    pb_task_answer(room, room);
    return pb_task_give_fd(room, dup(STDIN_FILENO)) < 0 ? -EIO : (int)n;
}

static void keep_note(void *arg, const char *text)
{
    snprintf(arg, 64, "%s", text);
}

static void a_child_that_dies_is_an_error_and_a_full_room_is_none(void **state)
{
    char note[64] = "";
    const struct pb_ask ask = {.note = keep_note, .note_arg = note, .limit_ms = GENEROUS_MS};
    struct pb_task tasks[] = {{.work = die, .pid = 17},
                              {.work = fill, .arg = (char[]){"mine"}, .room_size = 1 << 20}};

    signal(SIGSEGV, SIG_DFL); /* cmocka's own */
    pb_tasks_run(&ask, tasks, 2, 0);
    assert_int_equal(tasks[0].result, -ECHILD);
    assert_non_null(strstr(tasks[0].err.text, "process 17"));
    assert_null(tasks[0].room);
    assert_in_range(tasks[1].result, 1000, 1100);
    assert_ptr_equal(pb_task_answer_of(&tasks[1]), tasks[1].room);
    assert_string_equal(note, "a note of mine");
    assert_true(tasks[1].fd >= 0);
    close(tasks[1].fd);
    pb_room_free(tasks[1].room);
}

static void a_question_cancelled_before_starts_nothing(void **state)
{
    int cancel[2];
    struct pb_task tasks[100];

    assert_int_equal(pipe2(cancel, O_CLOEXEC), 0);
    close(cancel[1]);
    const struct pb_ask ask = {.limit_ms = GENEROUS_MS, .cancel = &cancel[0]};
    for (int i = 0; i < 100; i++)
        tasks[i] = (struct pb_task){.work = fill, .arg = (char[]){""}};
    pb_tasks_run(&ask, tasks, 100, 2);
    for (int i = 3; i < 100; i++)
        assert_int_equal(tasks[i].result, -ECANCELED);
    for (int i = 0; i < 3; i++) {
        pb_room_free(tasks[i].room);
        if (tasks[i].fd >= 0)
            close(tasks[i].fd);
    }
    close(cancel[0]);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        hang_environment(strcmp(argv[1], "hangs") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_hangs_holds_up_no_other),
        cmocka_unit_test(a_pattern_finds_a_process_that_hangs_and_its_neighbours),
        cmocka_unit_test(what_is_to_put_things_back_is_told_before_it_is_killed),
        cmocka_unit_test(threads_ask_at_once_and_one_is_cancelled),
        cmocka_unit_test(a_child_that_dies_is_an_error_and_a_full_room_is_none),
        cmocka_unit_test(a_question_cancelled_before_starts_nothing),
    };
    return cmocka_run_group_tests(tests, use_own_worker, remove_own_directory);
}
