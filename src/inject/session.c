/* session: see session.h. */
#include "inject/session.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "control/status.h"
#include "inject/inject.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/mem.h"
#include "remote/procinfo.h"
#include "remote/runs.h"
#include "remote/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define DEFAULT_TIMEOUT_MS 10000
#define POLL_NS            (200 * 1000ull)
#define HELLO_TIMEOUT_MS   5000
#define DIR_MAX            150 /* the agent's run directories are below it */

void pb_session_done(struct pb_session *session)
{
    pb_client_done(&session->client);
}

/* A descriptor of the target's, as ours. */
static int fetch_fd(pid_t pid, int fd, struct pb_err *err)
{
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return pb_fail(err, -errno, "process %d cannot be opened: %s", (int)pid, strerror(errno));
    int ours = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    if (ours < 0)
        return pb_fail(err, -errno,
                       "descriptor %d of process %d cannot be fetched: %s (kernel 5.6 or newer and the right "
                       "to trace it)",
                       fd, (int)pid, strerror(errno));
    return ours;
}

/* Sends one end of a socket pair through the door; the other end is the connection. */
static int connect_through_door(pid_t pid, int door, struct pb_err *err)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {"", 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int pair[2];

    _cleanup_close_ int door_fd = fetch_fd(pid, door, err);
    if (door_fd < 0)
        return door_fd;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pb_fail(err, -errno, "no socket: %s", strerror(errno));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
    int r = sendmsg(door_fd, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(pair[1]);
    if (r < 0) {
        close(pair[0]);
        return pb_fail(err, r, "the agent of process %d does not answer: %s", (int)pid, strerror(-r));
    }
    return pair[0];
}

/* The status struct of an agent that left no directory: through the library's mapping, asked for by its
 * symbol. */
static int find_status(pid_t pid, struct pb_agent_status *ret)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    struct pb_source memory = pb_source_of(pid);
    uint64_t address;

    int r = pb_maps_read(pid, &maps, NULL);
    for (size_t i = 0; r == 0 && i < maps.n; i++) {
        if (maps.at[i].offset != 0 || !strstr(maps.at[i].path, "probing"))
            continue;
        if (pb_elf_lookup(&memory, maps.at[i].start, "pb_agent_status", &address) == 0 &&
            pb_mem_read(pid, address, ret, sizeof(*ret)) == 0 && ret->magic == PB_STATUS_MAGIC &&
            ret->state == PB_AGENT_READY)
            return 0;
    }
    return r < 0 ? r : -ENOENT;
}

static int greet(pid_t pid, int fd, const char *secret, struct pb_session *s, struct pb_err *err)
{
    int r = pb_client_init(&s->client, fd, secret, HELLO_TIMEOUT_MS);
    return r < 0 ? pb_fail(err, r, "the agent of process %d does not answer: %s (is the process stopped?)",
                           (int)pid, strerror(-r))
                 : 0;
}

/* -ENOENT: no agent runs there. */
static int join(const struct pb_procinfo *process, struct pb_session *s, struct pb_err *err)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    struct pb_agent_status status;
    char secret[40];
    int fd;

    int r = pb_run_of(process, &run);
    if (r == 0) {
        snprintf(s->run_dir, sizeof(s->run_dir), "%s", run.path);
        fd = pb_run_connect(&run, secret, HELLO_TIMEOUT_MS, err);
        return fd < 0 ? fd : greet(process->pid, fd, secret, s, err);
    }
    r = find_status(process->pid, &status);
    if (r < 0 || status.pid != process->ns_pid || status.door_fd < 0)
        return -ENOENT;
    fd = connect_through_door(process->pid, status.door_fd, err);
    status.secret[sizeof(status.secret) - 1] = '\0';
    return fd < 0 ? fd : greet(process->pid, fd, status.secret, s, err);
}

/* Waits until the agent's thread has set itself up or said why it could not. -ESTALE: it is gone again. */
static int await_ready(pid_t pid, uint64_t address, uint64_t deadline, struct pb_err *err)
{
    struct pb_agent_status status;

    for (;;) {
        int r = pb_mem_read(pid, address, &status, sizeof(status));
        if (r < 0 || status.magic != PB_STATUS_MAGIC)
            return pb_fail(err, r < 0 ? r : -EPROTO, "process %d ended, or its agent is not ours", (int)pid);
        if (status.state == PB_AGENT_READY)
            return 0;
        if (status.state == PB_AGENT_IDLE)
            return pb_fail(err, -ESTALE, "somebody detached the agent of process %d meanwhile", (int)pid);
        status.text[sizeof(status.text) - 1] = '\0';
        if (status.state == PB_AGENT_FAILED)
            return pb_fail(err, -(status.error ? status.error : EIO), "the agent could not start: %s",
                           status.text);
        if (pb_now_ns() > deadline)
            return pb_fail(
                err, -ETIMEDOUT,
                "the agent is loaded but has not come up; the process may be stopped or out of CPU time");
        pb_sleep_ns(POLL_NS);
    }
}

/* A path of ours means the same to a process that sees the same files. */
static bool sees_our_files(const struct pb_procinfo *process)
{
    struct stat st;
    return stat("/proc/self/ns/mnt", &st) == 0 && st.st_ino == process->mnt_ns;
}

static int bring_in(const struct pb_procinfo *process, const struct pb_session_options *o,
                    struct pb_session *s, struct pb_err *err)
{
    char options[1024];
    struct pb_inject_result result;
    unsigned timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS;
    uint64_t deadline = pb_now_ns() + timeout_ms * PB_NS_PER_MS;
    const char *dir = getenv("PROBING_DIR");

    if (dir && *dir && (*dir != '/' || strlen(dir) > DIR_MAX))
        return pb_fail(err, -EINVAL, "PROBING_DIR must be an absolute path of at most %d bytes, not '%s'",
                       DIR_MAX, dir);
    int n = snprintf(options, sizeof(options), "host_pid=%d\ndir=%s\npython_dir=%s\nmax_memory=%s\n",
                     (int)process->pid, dir ? dir : "",
                     o->python_dir && sees_our_files(process) ? o->python_dir : "",
                     o->max_memory ? o->max_memory : "");
    if (n >= (int)sizeof(options))
        return pb_fail(err, -EMSGSIZE, "PROBING_DIR or a path of this installation is too long");
    const struct pb_inject_request request = {
        .pid = process->pid, .agent_dir = o->agent_dir, .options = options, .timeout_ms = timeout_ms};
    int r = pb_inject(&request, &result, err);
    if (r < 0)
        return r;
    s->injected = true;
    s->stopped_ns = result.stopped_ns;
    if (result.process_stopped)
        return pb_fail(
            err, -EAGAIN,
            "process %d is stopped; the agent is loaded and comes up when it is continued (kill -CONT %d)",
            (int)process->pid, (int)process->pid);
    return await_ready(process->pid, result.status_address, deadline, err);
}

/* Joins, or brings the agent in and joins. -ESTALE: one was there and went, as it does beside a detach. */
static int join_or_bring_in(const struct pb_procinfo *process, const struct pb_session_options *options,
                            struct pb_session *s, struct pb_err *err)
{
    int r = join(process, s, err);
    if (r == -ENOENT && options->no_inject)
        return pb_fail(err, r, "process %d is not probed", (int)process->pid);
    if (r == -ENOENT) {
        r = bring_in(process, options, s, err);
        if (r == 0)
            r = join(process, s, err);
        if (r == -ENOENT)
            return pb_fail(err, -ESTALE, "the agent of process %d came up and went", (int)process->pid);
    }
    return r == -ECONNREFUSED || r == -ECONNRESET || r == -EPIPE ? -ESTALE : r;
}

int pb_session_open(pid_t pid, const struct pb_session_options *options, struct pb_session *ret,
                    struct pb_err *err)
{
    unsigned timeout_ms = options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
    uint64_t deadline = pb_now_ns() + timeout_ms * PB_NS_PER_MS;
    struct pb_session s = {.client = {.fd = -1}};
    struct pb_procinfo process;

    int r = pb_procinfo_read(pid, &process, err);
    if (r < 0)
        return r;
    while ((r = join_or_bring_in(&process, options, &s, err)) == -ESTALE && pb_now_ns() < deadline)
        pb_sleep_ns(POLL_NS);
    if (r < 0) {
        pb_session_done(&s);
        return r;
    }
    *ret = s;
    return 0;
}

bool pb_session_probed(const struct pb_procinfo *process)
{
    struct pb_agent_status status;
    return find_status(process->pid, &status) == 0 && status.pid == process->ns_pid;
}

int pb_session_open_arena(pid_t pid, struct pb_err *err)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    struct pb_procinfo process;
    struct pb_agent_status status;

    int r = pb_procinfo_read(pid, &process, err);
    if (r < 0)
        return r;
    if (pb_run_of(&process, &run) == 0)
        return pb_run_open_arena(&run, err);
    if (find_status(pid, &status) < 0 || status.pid != process.ns_pid || status.arena_fd < 0)
        return pb_fail(err, -ENOENT, "process %d is not probed", (int)pid);
    return fetch_fd(pid, status.arena_fd, err);
}
