/* Run directories: which of the dead ones stay, and that a live one is never touched. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "control/rundir.h"

#include "test.h"

struct place {
    char path[64];
    int fd;
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    snprintf(p->path, sizeof(p->path), "/tmp/rundir-test-XXXXXX");
    assert_non_null(mkdtemp(p->path));
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    char command[128];
    close(p->fd);
    snprintf(command, sizeof(command), "rm -r %s", p->path);
    free(p);
    return system(command);
}

static void make_file(int fd, const char *run, const char *name, size_t size, time_t age)
{
    char path[128];
    static char zeros[1 << 16];

    snprintf(path, sizeof(path), "%s/%s", run, name);
    int file = openat(fd, path, O_WRONLY | O_CREAT, 0600);
    assert_true(file >= 0);
    for (; size > 0; size -= size < sizeof(zeros) ? size : sizeof(zeros))
        assert_true(write(file, zeros, size < sizeof(zeros) ? size : sizeof(zeros)) > 0);
    struct timespec times[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
    futimens(file, times);
    close(file);
}

static void make_run(struct place *p, const char *name, size_t bytes, time_t age)
{
    assert_int_equal(mkdirat(p->fd, name, 0700), 0);
    make_file(p->fd, name, "about", 10, age);
    make_file(p->fd, name, "arena", bytes, age);
    make_file(p->fd, name, "secret", 10, age);
}

static int there(struct place *p, const char *name)
{
    return faccessat(p->fd, name, F_OK, 0) == 0;
}

static void the_oldest_go_first_beyond_the_bytes(void **state)
{
    struct place *p = *state;

    make_run(p, "1-10-100", 1 << 20, 300);
    make_run(p, "1-11-100", 1 << 20, 200);
    make_run(p, "1-12-100", 1 << 20, 100);
    assert_int_equal(pb_rundir_collect(p->fd, 5 << 19, 86400), 1);
    assert_false(there(p, "1-10-100"));
    assert_true(there(p, "1-11-100") && there(p, "1-12-100"));
}

static void what_is_too_old_goes(void **state)
{
    struct place *p = *state;

    make_run(p, "1-10-100", 4096, 8 * 86400);
    make_run(p, "1-11-100", 4096, 6 * 86400);
    assert_int_equal(pb_rundir_collect(p->fd, 1 << 30, PB_RUNDIR_KEEP_S), 1);
    assert_false(there(p, "1-10-100"));
    assert_true(there(p, "1-11-100"));
}

static void make_many(struct place *p, int n, time_t age)
{
    for (int i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof(name), "1-%d-100", 1000 + i);
        make_run(p, name, 1, age + i);
    }
}

static void what_is_too_old_goes_however_much_it_is(void **state)
{
    struct place *p = *state;

    make_many(p, 300, 8 * 86400);
    assert_int_equal(pb_rundir_collect(p->fd, 1 << 30, PB_RUNDIR_KEEP_S), 300);
    assert_false(there(p, "1-1000-100") || there(p, "1-1299-100"));
}

static void keep_for(struct place *p, const char *name, const char *line)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/config", name);
    int fd = openat(p->fd, path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line));
    close(fd);
}

static void a_run_is_kept_as_long_as_it_was_told(void **state)
{
    struct place *p = *state;

    make_run(p, "1-10-100", 10, 20 * 86400);
    keep_for(p, "1-10-100", "3 probing.retention_days=30\n");
    make_run(p, "1-11-100", 10, 2 * 86400);
    keep_for(p, "1-11-100", "2 probing.retention_days=1\n");
    make_run(p, "1-12-100", 10, 2 * 86400);
    keep_for(p, "1-12-100",
             "0 probing.retention_days=1\n"); /* a default of another release is not its wish */
    assert_int_equal(pb_rundir_collect(p->fd, 1 << 30, 7 * 86400), 1);
    assert_true(there(p, "1-10-100") && there(p, "1-12-100"));
    assert_false(there(p, "1-11-100"));
}

static void no_more_than_so_many_stay_and_they_are_the_newest(void **state)
{
    struct place *p = *state;
    char name[64];

    make_many(p, 300, 100);
    assert_int_equal(pb_rundir_collect(p->fd, 1 << 30, PB_RUNDIR_KEEP_S), 300 - PB_RUNDIR_KEEP_RUNS);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "1-%d-100", 1000 + i);
        assert_int_equal(there(p, name), i < PB_RUNDIR_KEEP_RUNS);
    }
}

static void a_run_that_lives_or_is_not_ours_to_judge_stays(void **state)
{
    struct place *p = *state;
    int ready[2], status;
    char byte;

    make_run(p, "1-10-100", 1 << 20, 90 * 86400);
    make_run(p, "1-11-100", 1 << 20, 1);                   /* may be starting up */
    assert_int_equal(mkdirat(p->fd, "1-12-100", 0700), 0); /* no description */
    assert_int_equal(symlinkat("/etc", p->fd, "1-13-100"), 0);
    make_run(p, "notes", 1 << 20, 90 * 86400);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int fd = openat(p->fd, "1-10-100/about", O_RDWR);
        if (fcntl(fd, F_SETLK, &lock) != 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(pb_rundir_collect(p->fd, 0, 0), 0);
    assert_true(there(p, "1-10-100") && there(p, "1-11-100") && there(p, "1-12-100") && there(p, "notes"));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    assert_int_equal(pb_rundir_collect(p->fd, 0, 0), 1); /* its lock went with it */
    assert_false(there(p, "1-10-100"));
    close(ready[0]);
    close(ready[1]);
}

static void a_directory_with_something_else_in_it_is_left(void **state)
{
    struct place *p = *state;

    make_run(p, "1-10-100", 4096, 90 * 86400);
    make_file(p->fd, "1-10-100", "precious", 10, 0);
    pb_rundir_collect(p->fd, 0, 0);
    assert_true(there(p, "1-10-100/precious"));
}

static void what_a_start_that_failed_left_goes(void **state)
{
    struct place *p = *state;
    struct timespec old[2] = {{.tv_sec = time(NULL) - 60}, {.tv_sec = time(NULL) - 60}};

    assert_int_equal(mkdirat(p->fd, "1-10-100", 0700), 0);
    assert_int_equal(mkdirat(p->fd, "1-11-100", 0700), 0);
    assert_int_equal(utimensat(p->fd, "1-10-100", old, 0), 0);
    pb_rundir_collect(p->fd, 0, 0);
    assert_false(there(p, "1-10-100"));
    assert_true(there(p, "1-11-100")); /* may be starting up */
}

static void a_folder_that_others_could_have_prepared_is_refused(void **state)
{
    struct place *p = *state;
    char path[128], other[160];

    int fd = pb_rundir_open_user(p->path, path, sizeof(path));
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(chmod(path, 0755), 0);
    assert_int_equal(pb_rundir_open_user(p->path, path, sizeof(path)), -EPERM);
    assert_int_equal(chmod(path, 0700), 0);
    snprintf(other, sizeof(other), "%s-moved", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    assert_true(pb_rundir_open_user(p->path, path, sizeof(path)) < 0);
    assert_int_equal(pb_rundir_open_user(p->path, path, 8), -ENAMETOOLONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_oldest_go_first_beyond_the_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_too_old_goes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_too_old_goes_however_much_it_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_run_is_kept_as_long_as_it_was_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_more_than_so_many_stay_and_they_are_the_newest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_run_that_lives_or_is_not_ours_to_judge_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_directory_with_something_else_in_it_is_left, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_start_that_failed_left_goes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_that_others_could_have_prepared_is_refused, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
