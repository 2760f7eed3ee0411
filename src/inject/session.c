/* session: see session.h. */
#include "inject/session.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/retry.h"
#include "control/message.h"
#include "control/status.h"
#include "inject/inject.h"
#include "remote/elf.h"
#include "remote/maps.h"
#include "remote/mem.h"
#include "remote/openin.h"
#include "remote/procinfo.h"
#include "remote/runs.h"
#include "remote/source.h"
#include "remote/tables.h"
#include "remote/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define POLL_NS       (200 * 1000ull)
#define JOIN_NS       (50 * PB_NS_PER_MS) /* the longest wait before the next try to join */
#define DIR_MAX       150                 /* the agent's run directories are below it */
#define PIDFD_THREADS O_EXCL              /* PIDFD_THREAD: Linux 6.9 */

void pb_session_done(struct pb_session *session)
{
    pb_client_done(&session->client);
}

/* The resident thread's tid in our namespace. The target tells its tid in its own namespace, so only a thread
 * of that process is accepted. */
static int find_resident(pid_t pid, const struct pb_agent_status *status, pid_t *ret, struct pb_err *err)
{
    _cleanup_(pb_native_threads_done) struct pb_native_threads threads = {0};

    int r = pb_native_threads_read(pid, &threads, err);
    if (r < 0)
        return r;
    const struct pb_native_thread *t = pb_native_threads_find_ns(&threads, status->tid);
    if (!t)
        return pb_fail(err, -ESRCH, "the agent's thread is not in process %d any more", (int)pid);
    *ret = t->tid;
    return 0;
}

/* Fetches a descriptor from the table of that thread. -EINVAL, -ENOSYS: the kernel is too old. */
static int fetch_fd(pid_t tid, int fd)
{
    _cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, tid, PIDFD_THREADS);
    if (pidfd < 0)
        return -errno;
    int ours = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    return ours < 0 ? -errno : ours;
}

static int is_old_kernel(int r)
{
    return r == -EINVAL || r == -ENOSYS;
}

static int socket_option(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &size) < 0 ? -1 : value;
}

/* The target chose the descriptor's number: it may name any socket of the target, and a message there would
 * come from root. Only one end of a socket pair that the target made for itself is accepted. */
static bool is_door(pid_t pid, int fd)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);

    return socket_option(fd, SO_DOMAIN) == AF_UNIX && socket_option(fd, SO_TYPE) == SOCK_SEQPACKET &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == pid;
}

/* Sends one end of a socket pair through the door socket; the other end is the connection. */
static int send_through_door(pid_t pid, int door_fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {"", 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int pair[2];

    if (!is_door(pid, door_fd))
        return -ENOTSOCK;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
    /* The target chose the socket: one that does not accept a message at once is not a door. */
    int r = sendmsg(door_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
    close(pair[1]);
    if (r < 0)
        close(pair[0]);
    return r < 0 ? r : pair[0];
}

/* A socket in the network namespace of the process, where its abstract names are valid. */
static int socket_beside(pid_t pid)
{
    char path[64];
    struct stat ours, its;

    snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
    bool same = stat("/proc/self/ns/net", &ours) == 0 && stat(path, &its) == 0 && ours.st_ino == its.st_ino;
    _cleanup_close_ int back = same ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    _cleanup_close_ int there = same ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (!same && (back < 0 || there < 0 || setns(there, CLONE_NEWNET) < 0))
        return -errno;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = fd < 0 ? -errno : fd;
    if (!same && setns(back, CLONE_NEWNET) < 0) {
        r = -errno;
        if (fd >= 0)
            close(fd);
    }
    return r;
}

/* For kernels that cannot fetch a descriptor from the table of a thread. */
static int connect_abstract(const struct pb_procinfo *process, const struct pb_agent_status *status)
{
    const struct timeval limit = {.tv_sec = PB_SESSION_HELLO_MS / 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    size_t len = strnlen(status->abstract, sizeof(status->abstract));

    if (len == 0)
        return -ENOENT;
    _cleanup_close_ int fd = socket_beside(process->pid);
    if (fd < 0)
        return fd;
    memcpy(address.sun_path + 1, status->abstract, len);
    size_t address_size = offsetof(struct sockaddr_un, sun_path) + 1 + len;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
        connect(fd, (const struct sockaddr *)&address, (socklen_t)address_size) < 0)
        return errno == EAGAIN ? -ETIMEDOUT : -errno;
    /* Any process may bind a free abstract name: only the target itself is accepted. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != process->euid ||
        (peer.pid != process->pid && peer.pid != 0))
        return -EPERM;
    return pb_take_fd(fd);
}

static int connect_by_status(const struct pb_procinfo *process, const struct pb_agent_status *status,
                             struct pb_err *err)
{
    pid_t tid;

    int r = find_resident(process->pid, status, &tid, err);
    if (r < 0)
        return r;
    _cleanup_close_ int door_fd = fetch_fd(tid, status->door_fd);
    int fd = door_fd < 0 ? door_fd : send_through_door(process->pid, door_fd);
    if (is_old_kernel(door_fd))
        fd = connect_abstract(process, status);
    if (fd < 0)
        return pb_fail(
            err, fd,
            is_old_kernel(door_fd)
                ? "the agent of process %d cannot be reached: %s (before Linux 6.9 that takes a run "
                  "directory, the same network namespace or CAP_SYS_ADMIN)"
                : "the agent of process %d cannot be reached: %s (that needs the right to trace it: be its "
                  "user or root)",
            (int)process->pid, strerror(-fd));
    return fd;
}

/* Reads the status struct of an agent without a run directory: found by its symbol in the library's
 * mapping. */
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
            ret->version == PB_CONTROL_VERSION && ret->state == PB_AGENT_READY)
            return 0;
    }
    return r < 0 ? r : -ENOENT;
}

static int greet(pid_t pid, int fd, const char *secret, struct pb_session *s, struct pb_err *err)
{
    int r = pb_client_init(&s->client, fd, secret, PB_SESSION_HELLO_MS);
    return r < 0 ? pb_fail(err, r, "the agent of process %d does not answer: %s (is the process stopped?)",
                           (int)pid, strerror(-r))
                 : 0;
}

/* No thread of a stopped process answers: the client gets an error at once instead of after a timeout. */
static int check_running(const struct pb_procinfo *process, struct pb_err *err)
{
    return process->state == 'T'
               ? pb_fail(err, -EAGAIN, "process %d is stopped by a signal (kill -CONT %d resumes it)",
                         (int)process->pid, (int)process->pid)
               : 0;
}

/* -ENOENT: no agent runs there. */
static int join_agent(const struct pb_procinfo *process, struct pb_session *s, struct pb_err *err)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    struct pb_agent_status status;
    char secret[40];
    int fd;

    int r = pb_run_of(process, &run);
    if (r == 0) {
        snprintf(s->run_dir, sizeof(s->run_dir), "%s", run.path);
        if ((r = check_running(process, err)) < 0)
            return r;
        fd = pb_run_connect(&run, process, secret, PB_SESSION_HELLO_MS, err);
        return fd < 0 ? fd : greet(process->pid, fd, secret, s, err);
    }
    r = find_status(process->pid, &status);
    if (r < 0 || status.pid != process->ns_pid || status.door_fd < 0)
        return -ENOENT;
    if ((r = check_running(process, err)) < 0)
        return r;
    status.secret[sizeof(status.secret) - 1] = '\0';
    if (!pb_secret_valid(status.secret))
        return pb_fail(err, -EBADMSG, "the agent of process %d has no valid secret (was its memory changed?)",
                       (int)process->pid);
    fd = connect_by_status(process, &status, err);
    return fd < 0 ? fd : greet(process->pid, fd, status.secret, s, err);
}

/* Waits until the agent's thread has started or failed. -ESTALE: it is gone again. */
static int wait_until_ready(pid_t pid, uint64_t address, uint64_t deadline, struct pb_err *err)
{
    struct pb_agent_status status;
    struct pb_retry again = pb_retry_until(deadline, POLL_NS, POLL_NS);

    for (;;) {
        int r = pb_mem_read(pid, address, &status, sizeof(status));
        if (r < 0 || status.magic != PB_STATUS_MAGIC)
            return pb_fail(err, r < 0 ? r : -EPROTO, "process %d ended, or its agent is not ours", (int)pid);
        status.release[sizeof(status.release) - 1] = '\0';
        if (status.version != PB_CONTROL_VERSION)
            return pb_fail(err, -EPROTO,
                           "process %d has the agent of release %s; detach it with that release", (int)pid,
                           status.release);
        if (status.state == PB_AGENT_READY)
            return 0;
        if (status.state == PB_AGENT_IDLE)
            return pb_fail(err, -ESTALE, "the agent of process %d was detached by another tool meanwhile",
                           (int)pid);
        status.text[sizeof(status.text) - 1] = '\0';
        if (status.state == PB_AGENT_FAILED)
            return pb_fail(err, -(status.error ? status.error : EIO), "the agent could not start: %s",
                           status.text);
        if (!pb_retry_wait(&again))
            return pb_fail(
                err, -ETIMEDOUT,
                "the agent is loaded but has not come up; the process may be stopped or out of CPU time");
    }
}

/* Whether our paths name the same files for the process: it has the same mount namespace. */
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
    unsigned timeout_ms = o->timeout_ms ? o->timeout_ms : PB_SESSION_TIMEOUT_MS;
    uint64_t deadline = pb_now_ns() + timeout_ms * PB_NS_PER_MS;
    const char *dir = getenv("PROBING_DIR");

    if (dir && *dir && (*dir != '/' || strlen(dir) > DIR_MAX))
        return pb_fail(err, -EINVAL, "PROBING_DIR must be an absolute path of at most %d bytes, not '%s'",
                       DIR_MAX, dir);
    bool same_files = sees_our_files(process);
    int n = snprintf(options, sizeof(options),
                     "host_pid=%d\ndir=%s\npython_dir=%s\nmax_memory=%s\nprogram=%s%s\n", (int)process->pid,
                     dir ? dir : "", o->python_dir && same_files ? o->python_dir : "",
                     o->max_memory ? o->max_memory : "", same_files ? o->agent_dir : "",
                     same_files ? "/../../bin/probing" : "");
    if (n >= (int)sizeof(options))
        return pb_fail(err, -EMSGSIZE, "PROBING_DIR or a path of this installation is too long");
    const struct pb_inject_request request = {.pid = process->pid,
                                              .agent_dir = o->agent_dir,
                                              .options = options,
                                              .timeout_ms = timeout_ms,
                                              .say = o->say,
                                              .say_arg = o->say_arg};
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
    return wait_until_ready(process->pid, result.status_address, deadline, err);
}

/* Joins, or injects the agent and joins. -ESTALE: an agent was there and went away, as during a detach. */
static int join_or_bring_in(const struct pb_procinfo *process, const struct pb_session_options *options,
                            struct pb_session *s, struct pb_err *err)
{
    int r = join_agent(process, s, err);
    if (r == -ENOENT && options->no_inject)
        return pb_fail(err, r, "process %d is not probed", (int)process->pid);
    if (r == -ENOENT) {
        r = bring_in(process, options, s, err);
        if (r == 0)
            r = join_agent(process, s, err);
        if (r == -ENOENT)
            return pb_fail(err, -ESTALE, "the agent of process %d came up and went", (int)process->pid);
    }
    /* EBADF: its directory is removed and its door closed, but it is still marked as running. */
    return r == -ECONNREFUSED || r == -ECONNRESET || r == -EPIPE || r == -EBADF ? -ESTALE : r;
}

int pb_session_open(pid_t pid, const struct pb_session_options *options, struct pb_session *ret,
                    struct pb_err *err)
{
    unsigned timeout_ms = options->timeout_ms ? options->timeout_ms : PB_SESSION_TIMEOUT_MS;
    uint64_t deadline = pb_now_ns() + timeout_ms * PB_NS_PER_MS;
    struct pb_session s = {.client = {.fd = -1}};
    struct pb_procinfo process;

    int r = pb_procinfo_read(pid, &process, err);
    if (r < 0)
        return r;
    struct pb_retry again = pb_retry_until(deadline, POLL_NS, JOIN_NS);
    while ((r = join_or_bring_in(&process, options, &s, err)) == -ESTALE && pb_retry_wait(&again))
        ;
    if (r < 0) {
        pb_session_done(&s);
        return r;
    }
    *ret = s;
    return 0;
}

int pb_reply_end(pid_t pid, int r, const struct pb_frame *last, struct pb_err *err)
{
    enum { ERRNO_MAX = 4095 };
    struct pb_field text;

    if (r < 0)
        return pb_fail(err, r, "the agent of process %d does not answer: %s", (int)pid, strerror(-r));
    if (last->type == PB_MSG_DONE)
        return 0;
    if (last->type != PB_MSG_ERROR || pb_field_find(last, PB_TAG_TEXT, &text) < 0)
        return pb_fail(err, -EPROTO, "the agent of process %d answered with nothing that makes sense",
                       (int)pid);
    uint64_t number = pb_field_u64(last, PB_TAG_ERRNO, EIO);
    return pb_fail(err, number && number <= ERRNO_MAX ? -(int)number : -EIO, "%.*s", (int)text.size,
                   (const char *)text.data);
}

bool pb_session_probed(const struct pb_procinfo *process)
{
    struct pb_agent_status status;
    return find_status(process->pid, &status) == 0 && status.pid == process->ns_pid;
}

/* The target chose the number: it must be a file of tables of that user. It is examined before it is opened,
 * since opening a device or a pipe has effects. */
static int fetch_arena(const struct pb_procinfo *process, const struct pb_agent_status *status,
                       struct pb_err *err)
{
    char path[64];
    struct stat st;
    pid_t tid;

    int r = find_resident(process->pid, status, &tid, err);
    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", (int)process->pid, (int)tid, status->arena_fd);
    _cleanup_close_ int there = open(path, O_PATH | O_CLOEXEC);
    if (there < 0)
        return pb_fail(err, -errno,
                       "the tables of process %d cannot be opened: %s (that needs the right to trace it: be "
                       "its user or root)",
                       (int)process->pid, strerror(errno));
    if (fstat(there, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != process->euid)
        return pb_fail(err, -EPERM, "process %d tells of tables that are not its own", (int)process->pid);
    int fd = pb_reopen_regular(there, 0);
    return fd < 0 ? pb_fail(err, fd, "the tables of process %d cannot be opened: %s", (int)process->pid,
                            strerror(-fd))
                  : fd;
}

int pb_session_open_arena(pid_t pid, char *note, struct pb_err *err)
{
    _cleanup_(pb_run_done) struct pb_run_info run = {.dir_fd = -1};
    struct pb_procinfo process;
    struct pb_agent_status status;

    note[0] = '\0';
    int r = pb_procinfo_read(pid, &process, err);
    if (r < 0)
        return r;
    if (pb_run_of(&process, &run) == 0)
        return pb_tables_open(&process, &run, note, err);
    if (find_status(pid, &status) < 0 || status.pid != process.ns_pid || status.arena_fd < 0)
        return pb_fail(err, -ENOENT, "process %d is not probed", (int)pid);
    int fd = fetch_arena(&process, &status, err);
    return fd < 0 ? fd : pb_tables_check(fd, &process, err);
}
