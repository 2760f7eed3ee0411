/* The sandbox holds or is refused, never half: a thread that cannot be brought under the filter is named, and
 * a process that writes has its descriptors and nothing else. tsan: no, the sandbox closes what its run time
 * needs */
/* The sources themselves: what is tried is static in them. */
#include <pthread.h>
#include <sys/wait.h>

#include "engine/worker/sandbox.c"       // NOLINT(bugprone-suspicious-include)
#include "engine/worker/sandbox_files.c" // NOLINT(bugprone-suspicious-include)

#include "test.h"

static pthread_barrier_t ready;

/* A filter of its own, which allows all: with it a thread cannot be given another's. */
static void *go_astray(void *arg)
{
    struct sock_filter all[] = {RETURN(SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {.len = 1, .filter = all};

    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0)
        _exit(9);
    pthread_barrier_wait(&ready);
    pause();
    return NULL;
}

/* In a child, since there is no way back. Its exit status. */
static int in_child(int (*f)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(f());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int enter_beside_a_stray(void)
{
    struct pb_err err = {0};
    pthread_t stray;

    pthread_barrier_init(&ready, NULL, 2);
    if (pthread_create(&stray, NULL, go_astray, NULL) != 0)
        return 2;
    pthread_barrier_wait(&ready);
    int r = pb_sandbox_enter(NULL, &err);
    /* Then no thread has the filter. */
    int fd = (int)syscall(SYS_memfd_create, "x", 0);
    return r == -EBUSY && strstr(err.text, "refused by thread") && fd >= 0 ? 0 : 1;
}

static void a_thread_that_cannot_be_synchronised_is_named(void **state)
{
    assert_int_equal(in_child(enter_beside_a_stray), 0);
}

static int write_within(void)
{
    struct pb_err err = {0};
    char name[] = "/tmp/probing-sandbox-XXXXXX", path[32], back[8] = "";

    int file = mkstemp(name);
    unlink(name);
    if (file < 0 || pb_sandbox_enter_writer(&err) < 0)
        return 2;
    snprintf(path, sizeof(path), PB_SANDBOX_FILE "%d", file);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || pwrite(fd, "rows", 4, 0) != 4 || ftruncate(fd, 3) < 0 || fsync(fd) < 0)
        return 3;
    if (pread(file, back, sizeof(back), 0) != 3 || strcmp(back, "row") != 0)
        return 4;
    /* A lock, as DuckDB takes one; nothing else that fcntl can do. */
    struct flock lock = {.l_type = F_WRLCK};
    if (fcntl(fd, F_SETLK, &lock) < 0 || fcntl(fd, F_SETOWN, 1) == 0 || errno != EPERM)
        return 5;
    if (open("/dev/null", O_RDONLY) >= 0 || errno != EPERM ||
        open("/tmp/probing-x", O_WRONLY | O_CREAT, 0600) >= 0)
        return 6;
    if (open(PB_SANDBOX_FILE "x", O_RDWR) >= 0 || open(PB_SANDBOX_FILE "999", O_RDWR) >= 0)
        return 7;
    return syscall(SYS_memfd_create, "x", 0) >= 0 || syscall(SYS_unlinkat, AT_FDCWD, "/tmp/x", 0) == 0 ? 8
                                                                                                       : 0;
}

static void a_writer_has_its_descriptors_and_no_other_file(void **state)
{
    assert_int_equal(in_child(write_within), 0);
}

static int open_by_number_outside(void)
{
    return open(PB_SANDBOX_FILE "0", O_RDONLY) < 0 && errno == ENOENT ? 0 : 1;
}

static void outside_a_writer_the_names_stand_for_nothing(void **state)
{
    assert_int_equal(in_child(open_by_number_outside), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_cannot_be_synchronised_is_named),
        cmocka_unit_test(a_writer_has_its_descriptors_and_no_other_file),
        cmocka_unit_test(outside_a_writer_the_names_stand_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
