/* serve_program: see serve_program.h. */
#include "cli/serve_program.h"

#include "base/err.h"
#include "print/outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

int pb_serve_path(char *ret, size_t size)
{
    static const char name[] = "probing-serve";
    ssize_t n = readlink("/proc/self/exe", ret, size - sizeof(name));

    if (n < 0 || (size_t)n >= size - sizeof(name))
        return n < 0 ? -errno : -ENAMETOOLONG;
    ret[n] = '\0';
    char *slash = strrchr(ret, '/');
    strcpy(slash ? slash + 1 : ret, name);
    return 0;
}

int pb_serve_become(const char *const *words, struct pb_err *err)
{
    char path[PATH_SIZE];

    int r = pb_serve_path(path, sizeof(path));
    if (r < 0)
        return pb_fail(err, r, "where this program is cannot be told: %s", strerror(-r));
    execv(path, (char *const *)words);
    if (errno == ENOENT)
        return pb_fail(err, -ENOENT,
                       "%s not found: this build was made without libmicrohttpd (Debian: libmicrohttpd-dev)",
                       path);
    return pb_fail(err, -errno, "%s cannot be run: %s", path, strerror(errno));
}

/* Runs the program, and takes what it prints to one of its outputs; the other is ours, or nothing where it is
 * quiet. Returns its exit status. */
static int run_service(const char *const *words, int output, bool quiet, char ret[PB_SERVE_URL])
{
    int other = output == STDERR_FILENO ? STDOUT_FILENO : STDERR_FILENO;
    struct pb_err err = {0};
    int status, fds[2];
    size_t n = 0;
    ssize_t more = 1;

    ret[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) < 0)
        return 127;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], output);
        if (quiet)
            dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), other);
        int r = pb_serve_become(words, &err);
        pb_put_between(stderr, "probing: serve: ", pb_err_text(&err, r), "\n");
        fflush(stderr);
        _exit(127);
    }
    close(fds[1]);
    while (pid > 0 && more > 0 && n < PB_SERVE_URL - 1) {
        more = read(fds[0], ret + n, PB_SERVE_URL - 1 - n);
        n += more > 0 ? (size_t)more : 0;
    }
    ret[n] = '\0';
    close(fds[0]);
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

int pb_serve_check(const char *address, struct pb_err *err)
{
    static const char begin[] = "probing: serve: ";
    const char *words[] = {"probing-serve", "--check", address, NULL};
    char text[PB_SERVE_URL];

    if (!address || run_service(words, STDERR_FILENO, true, text) == 0)
        return 0;
    const char *why = strncmp(text, begin, strlen(begin)) == 0 ? text + strlen(begin) : text;
    return pb_fail(err, -EINVAL, "%.*s", (int)strcspn(why, "\n"), why);
}

static bool find_service(char ret[PB_SERVE_URL])
{
    static const char *const words[] = {"probing-serve", "--status", NULL};

    return run_service(words, STDOUT_FILENO, true, ret) == 0;
}

int pb_serve_start(const char *pid, const char *address, char ret[PB_SERVE_URL], struct pb_err *err)
{
    const char *start[] = {"probing-serve", "-b", "-a", pid, "--", address, NULL};

    if (find_service(ret))
        return 0;
    run_service(start, STDOUT_FILENO, false, ret);
    /* Another may have started it meanwhile. */
    if (find_service(ret))
        return pb_serve_check(address, err);
    return pb_fail(err, -EIO, "the service was not started; the process is probed all the same");
}
