/* serve_program: see serve_program.h. */
#include "cluster/link/serve_program.h"

#include "base/err.h"
#include "base/null.h"
#include "base/process.h"
#include "base/program.h"
#include "print/outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_SIZE = 4096 };

int pb_serve_path(char *ret, size_t size)
{
    return pb_program_beside("probing-serve", ret, size);
}

int pb_serve_become(const char *const *words, struct pb_err *err)
{
    char path[PATH_SIZE];

    int r = pb_serve_path(path, sizeof(path));
    if (r < 0)
        return pb_fail(err, r, "cannot find the probing executable: %s", strerror(-r));
    execv(path, (char *const *)words);
    if (errno == ENOENT)
        return pb_fail(err, -ENOENT,
                       "%s not found: this build was made without libmicrohttpd (Debian: libmicrohttpd-dev)",
                       path);
    return pb_fail(err, -errno, "%s cannot be run: %s", path, strerror(errno));
}

int pb_serve_check(const char *address, struct pb_err *err)
{
    struct pb_own_service own;
    struct sockaddr_storage at = {0};
    socklen_t n;

    int r = address ? pb_service_resolve(address, &at, &n, err) : 0;
    if (r < 0 || !address || pb_own_service_find(&own) < 0 || !own.url[0])
        return r;
    bool any_port = ((const struct sockaddr_in *)&at)->sin_port == 0; /* at the same place in sockaddr_in6 */
    if (any_port || pb_service_is_at(own.url, (const struct sockaddr *)&at, n))
        return 0;
    return pb_fail(
        err, -EEXIST,
        "your service runs already, at %.200s: %.100s is not served (probing serve --stop ends it)", own.url,
        address);
}

/* Waits until the service has gone to the background. It prints its errors itself. */
static void run_service(const char *const *words)
{
    struct pb_err err = {0};

    fflush(stdout);
    pid_t pid = pb_process_fork(0);
    if (pid == 0) {
        pb_null_over(STDOUT_FILENO, STDOUT_FILENO);
        int r = pb_serve_become(words, &err);
        pb_put_between(stderr, "probing: serve: ", pb_err_text(&err, r), "\n");
        fflush(stderr);
        _exit(127);
    }
    if (pid > 0)
        pb_process_wait(pid);
}

int pb_serve_start(const char *pid, const char *address, struct pb_own_service *ret, struct pb_err *err)
{
    const char *words[] = {"probing-serve", "--background", "--open", pid, "--", address, NULL};

    if (pb_own_service_find(ret) == 0)
        return 0;
    run_service(words);
    /* Another process may have started it at the same time. */
    if (pb_own_service_find(ret) == 0)
        return pb_serve_check(address, err);
    return pb_fail(err, -EIO, "the service was not started; the process is probed all the same");
}
