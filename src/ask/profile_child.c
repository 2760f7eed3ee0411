/* profile_child: see profile_child.h. */
#include "ask/profile_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "profile/stream.h"

#define CHILD_FD   3
#define EVERY_NS   (PB_NS_PER_S / 10)
#define START_NS   (30 * PB_NS_PER_S)
#define SEND_S     10 /* a caller that has not read for so long counts as gone */
#define READ_BYTES (64u << 10)
#define FDS_MAX    65536 /* closed one by one where close_range is missing */

struct pb_profile_child {
    pid_t pid;
    int fd;
    struct pb_stream_reader *reader;
};

/* The child's first message, before its stream. */
struct greeting {
    int result;
    char text[256];
};

/* A request of the caller to the child. */
struct request {
    bool join; /* false: leave */
    struct pb_target target;
};

/* --- in the child --- */

static bool send_all(int fd, const void *data, size_t len)
{
    for (const char *at = data; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

/* Drops the caller's descriptors and signals, and leaves the process group of its terminal. */
static void leave_caller(int fd)
{
    struct timeval limit = {.tv_sec = SEND_S};
    sigset_t none;

    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    if (fd != CHILD_FD)
        dup2(fd, CHILD_FD);
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; null >= 0 && i < 3; i++)
        dup2(null, i);
    if (syscall(SYS_close_range, CHILD_FD + 1, ~0u, 0) < 0)
        for (int i = CHILD_FD + 1; i < FDS_MAX; i++)
            close(i);
    setsockopt(CHILD_FD, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* Handles the requests received so far. False: the caller has cancelled, or is gone. */
static bool take_requests(struct pb_profiling *p)
{
    struct request request;

    for (;;) {
        ssize_t n = recv(CHILD_FD, &request, sizeof(request), MSG_DONTWAIT | MSG_PEEK);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0)
            return false;
        if ((size_t)n < sizeof(request)) /* the rest follows at once: the caller sends a request whole */
            return true;
        if (recv(CHILD_FD, &request, sizeof(request), 0) != (ssize_t)sizeof(request))
            return false;
        if (request.join)
            (void)pb_profiling_join(p, &request.target, NULL);
        else
            (void)pb_profiling_leave(p, request.target.pid);
    }
}

static bool send_frame(struct pb_profiling *p, struct pb_stream_writer *w)
{
    const void *frame;

    int n = pb_stream_frame(w, pb_profiling_profile(p), &frame);
    if (n < 0)
        return true; /* dropped; the next frame starts anew */
    return send_all(CHILD_FD, frame, (size_t)n);
}

static int run_child(const struct pb_profile_child_options *options)
{
    struct pb_profiling_options profiling = options->profiling;
    uint64_t every = options->every_ns ? options->every_ns : EVERY_NS;
    struct greeting greeting = {0};
    struct pb_stream_writer writer;
    struct pb_profiling *p;
    struct pb_err err = {0};

    profiling.sinks = true;
    profiling.cancelled = NULL;
    pb_stream_writer_init(&writer);
    struct pb_sink sink = pb_stream_sink(&writer);
    greeting.result = pb_profiling_new(&profiling, &p, &err);
    if (greeting.result == 0)
        greeting.result = pb_profiling_join_all(p, NULL, options->targets, &err);
    if (greeting.result == 0)
        greeting.result = pb_profiling_add_sink(p, &sink);
    if (greeting.result < 0)
        snprintf(greeting.text, sizeof(greeting.text), "%.255s", pb_err_text(&err, greeting.result));
    if (!send_all(CHILD_FD, &greeting, sizeof(greeting)) || greeting.result < 0)
        return 1;
    pb_sampler_hurry(&profiling.sampler);
    enum pb_profiling_state state = PB_PROFILING_GOES_ON;
    while (state == PB_PROFILING_GOES_ON) {
        state = pb_profiling_run(p, every);
        if (state == PB_PROFILING_GOES_ON && !take_requests(p))
            state = PB_PROFILING_CANCELLED;
        if (state != PB_PROFILING_GOES_ON) {
            pb_profiling_sum_up(p);
            pb_stream_end(&writer, (unsigned)state);
        }
        if (!send_frame(p, &writer))
            return 1;
    }
    return 0;
}

/* --- in the caller --- */

static int wait_greeting(int fd, uint64_t until, struct greeting *ret)
{
    size_t have = 0;

    while (have < sizeof(*ret)) {
        uint64_t now = pb_now_ns();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (now >= until)
            return -ETIMEDOUT;
        if (poll(&ready, 1, (int)((until - now) / PB_NS_PER_MS) + 1) <= 0)
            continue;
        ssize_t n = recv(fd, (char *)ret + have, sizeof(*ret) - have, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return -EPIPE;
        have += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int pb_profile_child_start(const struct pb_profile_child_options *options, struct pb_profile_child **ret,
                           struct pb_err *err)
{
    struct pb_profile_child *c = calloc(1, sizeof(*c));
    struct greeting greeting;
    int ends[2] = {-1, -1};

    if (!c)
        return pb_fail(err, -ENOMEM, "out of memory");
    c->fd = -1;
    int r = pb_stream_reader_new(options->profiling.memory_max, &options->sink, &c->reader);
    if (r == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        r = -errno;
    if (r == 0 && (c->pid = fork()) < 0)
        r = -errno;
    if (r < 0) {
        pb_fail(err, r, "no process can be started for the profile: %s", strerror(-r));
        if (ends[0] >= 0)
            close(ends[0]);
    } else if (c->pid == 0) {
        leave_caller(ends[1]);
        _exit(run_child(options));
    }
    if (ends[1] >= 0)
        close(ends[1]);
    if (r < 0) {
        c->pid = 0;
        pb_profile_child_free(c);
        return r;
    }
    c->fd = ends[0];
    r = wait_greeting(c->fd, pb_now_ns() + (options->start_ns ? options->start_ns : START_NS), &greeting);
    if (r < 0)
        pb_fail(err, r, "the sampling process %s",
                r == -ETIMEDOUT ? "did not begin in time" : "ended before it began");
    else if (greeting.result < 0)
        r = pb_fail(err, greeting.result, "%.255s", greeting.text);
    if (r < 0) {
        pb_profile_child_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void pb_profile_child_free(struct pb_profile_child *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    if (c->pid > 0) {
        /* The kernel resumes the threads that it had stopped. */
        kill(c->pid, SIGKILL);
        while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    pb_stream_reader_free(c->reader);
    free(c);
}

int pb_profile_child_fd(const struct pb_profile_child *c)
{
    return c->fd;
}

#define READS_MAX 64 /* per call, so that a fast child does not keep the reader busy for ever */

int pb_profile_child_read(struct pb_profile_child *c, struct pb_err *err)
{
    _cleanup_free_ char *data = malloc(READ_BYTES);
    unsigned state;

    if (!data)
        return pb_fail(err, -ENOMEM, "out of memory");
    for (int i = 0; i < READS_MAX; i++) {
        if (pb_stream_ended(c->reader, &state))
            return state <= PB_PROFILING_ENDED ? (int)state : -EBADMSG;
        ssize_t n = recv(c->fd, data, READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0)
            return pb_fail(err, -EPIPE, "the sampling process has died");
        int r = pb_stream_feed(c->reader, data, (size_t)n);
        if (r < 0)
            return pb_fail(err, r, "the samples cannot be read: %s", strerror(-r));
    }
    return PB_PROFILING_GOES_ON;
}

static int ask_child(struct pb_profile_child *c, const struct request *request)
{
    ssize_t n = send(c->fd, request, sizeof(*request), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n == (ssize_t)sizeof(*request) ? 0 : n < 0 ? -errno : -EPIPE;
}

int pb_profile_child_join(struct pb_profile_child *c, const struct pb_target *target)
{
    struct request request = {.join = true, .target = *target};

    request.target.core = request.target.root = NULL; /* pointers mean nothing in the child */
    return ask_child(c, &request);
}

int pb_profile_child_leave(struct pb_profile_child *c, pid_t pid)
{
    return ask_child(c, &(struct request){.target.pid = pid});
}

void pb_profile_child_cancel(struct pb_profile_child *c)
{
    shutdown(c->fd, SHUT_WR);
}

const struct pb_profile *pb_profile_child_names(const struct pb_profile_child *c)
{
    return pb_stream_names(c->reader);
}
