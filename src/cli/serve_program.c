/* serve_program: see serve_program.h. */
#include "cli/serve_program.h"

#include "base/err.h"
#include "print/outlet.h"

#include <errno.h>
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

/* Runs the service. Returns its exit status. */
static int run_service(const char *const *words)
{
    struct pb_err err = {0};
    int status;

    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int r = pb_serve_become(words, &err);
        pb_put_between(stderr, "probing: serve: ", pb_err_text(&err, r), "\n");
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

int pb_serve_start(int pid, const char *address, struct pb_err *err)
{
    char target[16];
    const char *start[] = {"probing-serve", "-b", "-a", target, "--", address, NULL},
               *status[] = {"probing-serve", "--status", NULL};

    snprintf(target, sizeof(target), "%d", pid);
    int first = run_service(start);
    if (first == 0 || (first == 1 && run_service(status) == 0))
        return 0;
    return pb_fail(err, -EIO, "the service was not started; the process is probed all the same");
}
