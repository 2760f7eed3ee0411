/* answer_service: the user's service on this node: found, started, ended; see answer.h.
 *
 * There is one for a user and node, and its token is made here and read from its folder: it comes to the
 * asking end in the answer, and is on no command line and in no environment. A service that was started for a
 * cluster has the cluster's mark in its environment, by which it is known again. */
#include "base/cleanup.h"
#include "base/ending.h"
#include "base/err.h"
#include "base/host_port.h"
#include "base/null.h"
#include "base/procfs.h"
#include "base/time.h"
#include "cli/cluster/answer.h"
#include "cli/serve_program.h"
#include "cluster/link/run_program.h"
#include "control/identity.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK_VARIABLE "PROBING_SERVED_FOR"
enum { PATH_SIZE = 4096, TEXT_MAX = 65536, START_MS = 5000, END_MS = 5000, AGAIN_MS = 20 };

/* srun brings the environment of where it was started, whose runtime folder this node may not have. */
static void drop_foreign_runtime(void)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;

    if (runtime && (stat(runtime, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()))
        unsetenv("XDG_RUNTIME_DIR");
}

/* pid is 0 if no service runs, or if it does not listen yet. */
static struct pb_own_service find_service(void)
{
    struct pb_own_service own;

    return pb_own_service_find(&own) == 0 && own.url[0] && own.token[0] ? own : (struct pb_own_service){0};
}

static bool is_marked(pid_t pid, const char *mark)
{
    _cleanup_free_ char *environment = NULL;
    size_t n = 0, name = strlen(MARK_VARIABLE "=");

    if (pb_proc_slurp(pid, "environ", &environment, &n) < 0)
        return false;
    for (size_t at = 0; at < n; at += strlen(environment + at) + 1)
        if (strncmp(environment + at, MARK_VARIABLE "=", name) == 0)
            return strcmp(environment + at + name, mark) == 0;
    return false;
}

/* --- the address --- */

/* The address that this node has on the way to that one; nothing is sent. False: there is no way, or it is
 * this machine's own. */
static bool find_own_address(const char *towards, char *ret, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV},
                    *found = NULL;
    struct sockaddr_storage own;
    socklen_t n = sizeof(own);
    char host[64];

    if (getaddrinfo(towards, "9", &hints, &found) != 0)
        return false;
    _cleanup_close_ int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
              getsockname(fd, (struct sockaddr *)&own, &n) == 0 && !pb_is_loopback((struct sockaddr *)&own) &&
              getnameinfo((struct sockaddr *)&own, n, host, sizeof(host), NULL, 0, NI_NUMERICHOST) == 0;
    freeaddrinfo(found);
    if (ok)
        snprintf(ret, size, own.ss_family == AF_INET6 ? "[%s]:0" : "%s:0", host);
    return ok;
}

/* The address to offer: the one facing the launcher, if its environment has one; else the one facing an
 * address of the asking end; else loopback, for an asking end on this machine. */
static int choose_address(const struct pb_node_question *q, char *ret, size_t size, struct pb_err *err)
{
    const char *ssh = getenv("SSH_CONNECTION"), *srun = getenv("SLURM_LAUNCH_NODE_IPADDR");
    char client[64] = "";

    if (ssh && sscanf(ssh, "%63s", client) == 1 && find_own_address(client, ret, size))
        return 0;
    if (srun && find_own_address(srun, ret, size))
        return 0;
    for (size_t i = 3; i < q->nwords; i++)
        if (find_own_address(q->words[i], ret, size))
            return 0;
    if (q->nwords > 3)
        return pb_fail(err, -EHOSTUNREACH, "it has no address towards the machine that asks");
    snprintf(ret, size, "127.0.0.1:0");
    return 0;
}

/* --- requests --- */

/* The launcher has made this process one of its tasks; a service is no rank. */
static void drop_rank(void)
{
    struct pb_identity id;
    char name[64];

    for (char **entry = environ; entry && *entry;) {
        pb_identity_read(*entry, strlen(*entry), &id);
        bool rank = false;
        for (int i = PB_ID_RANK; i < PB_ID_FIELDS; i++)
            rank = rank || id.value[i][0];
        if (rank && sscanf(*entry, "%63[^=]", name) == 1 && unsetenv(name) == 0)
            entry = environ;
        else
            entry++;
    }
}

static int start_service(const struct pb_node_question *q, bool hold, struct pb_err *err)
{
    char address[80], path[PATH_SIZE];
    const char *background[] = {path, "--background", "--", address, NULL},
               *words[] = {"probing-serve", "--", address, NULL};
    _cleanup_free_ char *ignored = NULL;
    size_t n;

    int r = choose_address(q, address, sizeof(address), err);
    if (r == 0)
        r = pb_serve_path(path, sizeof(path));
    if (r < 0)
        return r;
    drop_rank();
    if (setenv(MARK_VARIABLE, q->words[2], 1) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (!hold)
        return pb_run_program(background, TEXT_MAX, START_MS, &ignored, &n, err);
    pb_null_over(STDIN_FILENO, STDOUT_FILENO); /* it prints its token */
    return pb_serve_become(words, err);
}

static int end_service(const struct pb_own_service *own, const char *mark, struct pb_err *err)
{
    struct pb_ending service;

    if (!own->pid || pb_ending_open(own->pid, 0, &service) < 0)
        return 0;
    int r = is_marked(own->pid, mark) ? pb_ending_signal(&service, SIGTERM) : -ESRCH;
    if (r == 0)
        r = pb_ending_wait(&service, END_MS);
    pb_ending_close(&service);
    if (r == -ETIMEDOUT)
        return pb_fail(err, r, "its service (process %d) did not exit within %d s of SIGTERM", (int)own->pid,
                       END_MS / 1000);
    return r < 0 && r != -ESRCH
               ? pb_fail(err, r, "its service (process %d) cannot be ended: %s", (int)own->pid, strerror(-r))
               : 0;
}

int pb_answer_service(const struct pb_answering *a, struct pb_err *err)
{
    const struct pb_node_question *q = a->question;
    uint64_t end = pb_now_ns() + START_MS * PB_NS_PER_MS;
    char text[PB_SERVICE_PATH + PB_SERVICE_TOKEN + 16];
    int r = 0;

    if (q->nwords < 3)
        return pb_fail(err, -EINVAL, "usage: service find|start|hold|wait|end MARK");
    const char *what = q->words[1], *mark = q->words[2];
    end = end < a->deadline_ns - AGAIN_MS * PB_NS_PER_MS ? end : a->deadline_ns - AGAIN_MS * PB_NS_PER_MS;
    drop_foreign_runtime();
    struct pb_own_service own = find_service();
    if (strcmp(what, "end") == 0)
        return end_service(&own, mark, err);
    bool hold = strcmp(what, "hold") == 0;
    if (!own.pid && (hold || strcmp(what, "start") == 0)) {
        r = start_service(q, hold, err);
        own = r == 0 ? find_service() : own;
    }
    while (!own.pid && strcmp(what, "wait") == 0 && pb_now_ns() < end) {
        pb_sleep_ns(AGAIN_MS * PB_NS_PER_MS);
        own = find_service();
    }
    if (r == 0 && own.pid) {
        snprintf(text, sizeof(text), "%s %s %s", own.url, own.token,
                 is_marked(own.pid, mark) ? "own" : "other");
        pb_answer_bytes(a->out, false, text, strlen(text));
    }
    return r;
}
