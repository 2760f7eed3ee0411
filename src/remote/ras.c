/* ras: see ras.h. */
#include "remote/ras.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_port.h"
#include "base/procfs.h"
#include "base/time.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define USUAL_PORT 28028
#define MOST       (16 << 20)

static const char greeting[] = "SERVER PROTOCOL ";

/* --- asking ---------------------------------------------------------------------------------------- */

/* The value of a variable of the process; "": it has none. */
static void take_variable(const char *block, size_t length, const char *name, char *ret, size_t size)
{
    size_t n = strlen(name);

    ret[0] = '\0';
    for (size_t at = 0; at < length; at += strnlen(block + at, length - at) + 1)
        if (length - at > n && memcmp(block + at, name, n) == 0 && block[at + n] == '=')
            snprintf(ret, size, "%.*s", (int)strnlen(block + at + n + 1, length - at - n - 1),
                     block + at + n + 1);
}

static bool is_same_network(pid_t pid)
{
    char path[64];
    struct stat ours, theirs;

    snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
    return stat("/proc/self/ns/net", &ours) < 0 || stat(path, &theirs) < 0 || ours.st_ino == theirs.st_ino;
}

/* The port it listens on: of this machine, whatever the variable says. */
static int find_port(pid_t pid, struct pb_err *err)
{
    _cleanup_free_ char *block = NULL;
    char enabled[8], address[128], host[96];
    const char *port = NULL;
    size_t length;

    int r = pb_proc_slurp(pid, "environ", &block, &length);
    if (r < 0)
        return pb_fail(err, r, "the environment of process %d cannot be read: %s", (int)pid, strerror(-r));
    take_variable(block, length, "NCCL_RAS_ENABLE", enabled, sizeof(enabled));
    if (strcmp(enabled, "0") == 0)
        return pb_fail(err, -ENOENT, "NCCL's RAS is off there (NCCL_RAS_ENABLE=0)");
    if (!is_same_network(pid))
        return pb_fail(err, -ENOENT, "process %d is in another network namespace: ask there", (int)pid);
    take_variable(block, length, "NCCL_RAS_ADDR", address, sizeof(address));
    if (!address[0])
        return USUAL_PORT;
    if (pb_host_port_split(address, host, sizeof(host), &port) < 0)
        return pb_fail(err, -ENOENT, "NCCL_RAS_ADDR=%s of process %d is no address", address, (int)pid);
    if (host[0] && strcmp(host, "localhost") != 0 && !pb_host_is_loopback(host))
        return pb_fail(err, -ENOENT,
                       "NCCL's RAS of process %d listens at %s, which is not loopback: it is not asked",
                       (int)pid, host);
    long number = port ? strtol(port, NULL, 10) : USUAL_PORT;
    return number > 0 && number < 65536 ? (int)number
                                        : pb_fail(err, -ENOENT, "NCCL_RAS_ADDR=%s has no port", address);
}

static int wait_for(int fd, short what, int64_t until)
{
    int64_t left = (until - (int64_t)pb_now_ns()) / 1000000;
    struct pollfd p = {.fd = fd, .events = what};

    return left > 0 && poll(&p, 1, (int)left) > 0 ? 0 : -ETIMEDOUT;
}

static int connect_to(int port, int64_t until)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int failed = 0;
    socklen_t size = sizeof(failed);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int r = connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 ? 0 : -errno;
    if (r == -EINPROGRESS)
        r = wait_for(fd, POLLOUT, until);
    if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) == 0)
        r = -failed;
    if (r < 0) {
        close(fd);
        return r;
    }
    return fd;
}

/* One line of the answer, without its end. */
static int read_line(int fd, char *ret, size_t size, int64_t until)
{
    size_t n = 0;

    while (n + 1 < size) {
        int r = wait_for(fd, POLLIN, until);
        ssize_t got = r < 0 ? r : read(fd, ret + n, 1);
        if (got <= 0)
            return got < 0 && r == 0 ? -errno : r < 0 ? r : -EPIPE;
        if (ret[n] == '\n')
            break;
        n++;
    }
    ret[n] = '\0';
    return 0;
}

static int say(int fd, const char *text)
{
    size_t n = strlen(text);

    return send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n ? 0 : -EPIPE;
}

static int read_rest(int fd, char **ret, size_t *ret_length, int64_t until)
{
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room);

    for (int r = 0; text;) {
        if (n + 1 == room) {
            char *more = room < MOST ? realloc(text, 2 * room) : NULL;
            if (!more)
                break;
            text = more;
            room *= 2;
        }
        r = wait_for(fd, POLLIN, until);
        ssize_t got = r < 0 ? -1 : read(fd, text + n, room - 1 - n);
        if (got == 0) {
            text[n] = '\0';
            *ret = text;
            *ret_length = n;
            return 0;
        }
        if (got < 0)
            break;
        n += (size_t)got;
    }
    free(text);
    return -ETIMEDOUT;
}

static bool names_process(const struct pb_ras *ras, pid_t pid)
{
    for (size_t i = 0; i < ras->ncomms; i++)
        for (size_t k = 0; k < ras->comms[i].nranks; k++)
            if (ras->comms[i].ranks[k].pid == (long)pid)
                return true;
    return false;
}

int pb_ras_ask(pid_t pid, unsigned limit_ms, struct pb_ras *ret, struct pb_err *err)
{
    int64_t until = (int64_t)pb_now_ns() + (int64_t)limit_ms * 1000000;
    _cleanup_free_ char *text = NULL;
    char line[128];
    size_t length;

    int port = find_port(pid, err);
    if (port < 0)
        return port;
    int opened = connect_to(port, until);
    _cleanup_close_ int fd = opened;
    if (opened < 0)
        return pb_fail(err, -ENOENT, "NCCL's RAS does not answer at 127.0.0.1:%d: %s", port,
                       strerror(-opened));
    int r = say(fd, "CLIENT PROTOCOL 2\n");
    r = r < 0 ? r : read_line(fd, line, sizeof(line), until);
    if (r < 0 || strncmp(line, greeting, sizeof(greeting) - 1) != 0)
        return pb_fail(err, -ENOENT, "what listens at 127.0.0.1:%d is not NCCL's RAS", port);
    r = say(fd, "SET FORMAT json\n");
    r = r < 0 ? r : read_line(fd, line, sizeof(line), until);
    if (r < 0 || strcmp(line, "OK") != 0)
        return pb_fail(err, -ENOTSUP, "this version of NCCL's RAS does not answer as JSON (2.28 does)");
    r = say(fd, "VERBOSE STATUS\n");
    r = r < 0 ? r : read_rest(fd, &text, &length, until);
    if (r < 0)
        return pb_fail(err, r, "NCCL's RAS did not answer in %u ms", limit_ms);
    r = pb_ras_parse(text, length, ret, err);
    if (r == 0 && !names_process(ret, pid)) {
        pb_ras_done(ret);
        return pb_fail(err, -ESRCH, "NCCL's RAS at 127.0.0.1:%d is of another job", port);
    }
    return r;
}
