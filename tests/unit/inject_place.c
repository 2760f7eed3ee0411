/* Tests of inject/place: the agent is written into the memfd that the target has made for it, and into no
 * other file, whatever the target's mounts call it. */
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "inject/place.h"
#include "remote/procinfo.h"

#include "test.h"

#define USER 64201 /* no user of this machine */
static const char name[] = "probing-agent-test", content[] = "the agent";

struct target {
    pid_t pid;
    int fd; /* of the target, that it says is its memfd */
    struct pb_procinfo info;
};

/* Runs make in a child, which becomes another user and waits. */
static struct target start(int (*make)(const char *arg), const char *arg)
{
    struct target t = {0};
    int ready[2];

    assert_int_equal(pipe(ready), 0);
    t.pid = fork();
    assert_true(t.pid >= 0);
    if (t.pid == 0) {
        int fd = make(arg);
        (void)!write(ready[1], &fd, sizeof(fd));
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &t.fd, sizeof(t.fd)), sizeof(t.fd));
    close(ready[0]);
    close(ready[1]);
    assert_true(t.fd >= 0);
    assert_int_equal(pb_procinfo_read(t.pid, &t.info, NULL), 0);
    return t;
}

static void end(const struct target *t)
{
    kill(t->pid, SIGKILL);
    waitpid(t->pid, NULL, 0);
}

static int fill(const struct target *t)
{
    struct pb_agent_file agent = {.data = (void *)(uintptr_t)content, .len = sizeof(content)};
    struct pb_place ignored;

    strcpy(agent.name, name);
    return pb_place_fill(&t->info, t->pid, t->fd, &agent, &ignored, NULL);
}

static void become_user(void)
{
    if (setresgid(USER, USER, USER) < 0 || setresuid(USER, USER, USER) < 0)
        _exit(1);
}

static int make_memfd(const char *arg)
{
    (void)arg;
    become_user();
    return memfd_create(name, 0);
}

/* The file as it is called in a mount namespace of its own, whose root is empty but for it. */
static int mount_at_that_name(const char *file)
{
    char folder[] = "/tmp/place-test-XXXXXX", at[96];

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        !mkdtemp(folder) || mount("none", folder, "tmpfs", 0, NULL) < 0)
        return -1;
    snprintf(at, sizeof(at), "%s/memfd:%s (deleted)", folder, name);
    int made = open(at, O_WRONLY | O_CREAT, 0600);
    if (made < 0 || mount(file, at, NULL, MS_BIND, NULL) < 0 || chdir(folder) < 0 ||
        syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
        return -1;
    close(made);
    become_user();
    snprintf(at, sizeof(at), "/memfd:%s (deleted)", name);
    return open(at, O_RDONLY);
}

static void a_memfd_of_the_target_is_filled(void **state)
{
    char path[64], text[sizeof(content)] = "";

    (void)state;
    if (geteuid() != 0)
        skip();
    struct target t = start(make_memfd, NULL);
    assert_int_equal(fill(&t), 0);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)t.pid, t.fd);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, text, sizeof(text)), sizeof(text));
    assert_string_equal(text, content);
    close(fd);
    end(&t);
}

static void a_file_that_is_mounted_at_its_name_is_not(void **state)
{
    char file[] = "/tmp/place-victim-XXXXXX", link[96], text[64] = "", path[64];

    (void)state;
    if (geteuid() != 0)
        skip();
    int fd = mkstemp(file);
    assert_int_equal(write(fd, "precious", 8), 8);
    assert_int_equal(fchmod(fd, 0644), 0);
    struct target t = start(mount_at_that_name, file);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)t.pid, t.fd);
    ssize_t n = readlink(path, link, sizeof(link) - 1);
    assert_true(n > 0);
    link[n] = '\0';
    assert_string_equal(link, "/memfd:probing-agent-test (deleted)");
    assert_int_equal(fill(&t), -ESTALE);
    /* Nor where it has no name any more, since it is root's. */
    unlink(file);
    assert_int_equal(fill(&t), -ESTALE);
    assert_int_equal(pread(fd, text, sizeof(text), 0), 8);
    assert_string_equal(text, "precious");
    close(fd);
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_memfd_of_the_target_is_filled),
        cmocka_unit_test(a_file_that_is_mounted_at_its_name_is_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
