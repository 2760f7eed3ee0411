/* probing-sql: the worker that runs SQL, in a sandbox.
 *
 * probing-sql listen 3   answers on the listening socket 3, one caller after the other, until none has come
 *                        for a minute: the next query need not load DuckDB again
 * probing-sql serve 3    answers the one caller at the other end of socket 3
 *
 * Both take the folder of an archive as one more word, which may then be read.
 *
 * probing-sql archive 3        writes segments of arenas to an archive: see archive_write.c
 * probing-sql parquet 3 FILE   writes the rows that come through socket 3 to a file: see parquet.c
 *
 * Started by the caller (broker.c), never by a person. One query runs at a time; a second thread watches the
 * clock and the caller: it interrupts DuckDB, and when that does not help, ends the process. */
#include "base/children.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/time.h"
#include "engine/worker/archive_scan.h"
#include "engine/worker/duck.h"
#include "engine/worker/engine.h"
#include "engine/worker/pool.h"
#include "engine/worker/sandbox.h"
#include "engine/writer/archive_write.h"
#include "engine/writer/parquet.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* When idle the worker first returns its memory, and ends after a minute. */
enum {
    PAUSE_MS = 2000,
    IDLE_MS = 60000,
    CALLER_IDLE_MS = 10000,
    GRACE_MS = 1000,
    PROGRESS_MS = 100,
    STACK = 64 << 20,
    MAX_THREADS = 4
};

/* Limits of a query: address space, and memory for its data. */
static const uint64_t MOST_SPACE = 8ull << 30, LEAST_SPACE = 2ull << 30, LEAST_ROOM = 64ull << 20;
/* Most memory that a stopped query may leave behind in a worker that stays. */
static const uint64_t MOST_LEFT_BEHIND = 256ull << 20;

struct worker {
    int listener; /* -1: one caller only */
    int caller;
    int lock; /* of our slot, passed by the caller; released when this worker is free; -1: none */
    int pidfd;
    int statm; /* our own /proc/self/statm, opened before the sandbox; -1: unavailable */
    uint64_t idle_pages;
    struct pb_engine *engine;
    int wake;                 /* wakes the watching thread */
    pthread_mutex_t watching; /* guards the fields below; held while the query is interrupted */
    uint64_t deadline;        /* 0: no query runs */
    uint64_t stopped;         /* when it was first interrupted; 0: not yet */
};

/* --- the watching thread --- */

/* A caller that has closed only its sending side still reads. */
static bool caller_is_gone(int fd)
{
    struct pollfd p = {.fd = fd};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR);
}

/* Interrupts a query that takes too long or has lost its caller; ends the process if the query does not stop.
 * Under the lock, so that the next query is never interrupted for this one's deadline. Returns whether a
 * query runs that may go on. */
static bool stop_what_is_late(struct worker *w, uint64_t now)
{
    bool goes_on = false;

    pthread_mutex_lock(&w->watching);
    if (w->deadline && now < w->deadline && !caller_is_gone(w->caller)) {
        goes_on = true;
    } else if (w->deadline) {
        if (!w->stopped)
            w->stopped = now;
        if (now - w->stopped > GRACE_MS * PB_NS_PER_MS)
            _exit(3);
        pb_engine_interrupt(w->engine);
    }
    pthread_mutex_unlock(&w->watching);
    return goes_on;
}

static bool is_watched(struct worker *w)
{
    pthread_mutex_lock(&w->watching);
    bool watched = w->deadline != 0;
    pthread_mutex_unlock(&w->watching);
    return watched;
}

static void *watch_query(void *arg)
{
    struct worker *w = arg;
    struct pollfd p = {.fd = w->wake, .events = POLLIN};
    uint64_t last_report = 0, count;

    for (;;) {
        if (poll(&p, 1, is_watched(w) ? 20 : -1) > 0 && read(w->wake, &count, sizeof(count)) < 0)
            return NULL;
        uint64_t now = pb_now_ns();
        if (stop_what_is_late(w, now) && now - last_report > PROGRESS_MS * PB_NS_PER_MS) {
            last_report = now;
            pb_engine_progress(w->engine);
        }
    }
}

static void set_deadline(struct worker *w, uint64_t deadline)
{
    pthread_mutex_lock(&w->watching);
    w->deadline = deadline;
    w->stopped = 0;
    pthread_mutex_unlock(&w->watching);
}

static void begin_watch(struct worker *w, uint64_t deadline)
{
    uint64_t one = 1;

    set_deadline(w, deadline ? deadline : UINT64_MAX);
    if (write(w->wake, &one, sizeof(one)) < 0)
        _exit(4);
}

/* --- a caller --- */

static int say_hello(const struct worker *w)
{
    struct pb_wire m = {0};

    pb_wire_begin(&m, PB_SQL_HELLO);
    pb_wire_put_u32(&m, PB_SQL_VERSION);
    pb_wire_put_text(&m, PROBING_VERSION, strlen(PROBING_VERSION));
    if (w->pidfd >= 0)
        pb_wire_put_fd(&m, w->pidfd);
    int r = pb_wire_send(w->caller, &m, pb_now_ns() + 5 * PB_NS_PER_S);
    pb_wire_done(&m);
    return r;
}

/* Parses a request: its sources go to the catalog with their descriptors. */
static int read_request(struct pb_wire *m, struct pb_engine_request *q, struct pb_err *err)
{
    q->timeout_ms = pb_wire_u32(m);
    uint32_t flags = pb_wire_u32(m);
    q->no_agent = flags & PB_SQL_NO_AGENT;
    q->progress = flags & PB_SQL_WANTS_PROGRESS;
    q->plan = flags & PB_SQL_PLAN;
    q->whole = flags & PB_SQL_WHOLE;
    q->node_rows = flags & PB_SQL_NODE_ROWS;
    q->now_us = pb_wire_u64(m);
    q->cap = pb_wire_u64(m);
    q->in = m;
    uint32_t n = pb_wire_u32(m), taken = 0;
    if (!pb_wire_ok(m) || n > PB_SQL_MAX_SOURCES || (n && (q->plan || q->node_rows)))
        return -EBADMSG;
    if (q->plan || q->node_rows) {
        q->sql = pb_wire_text(m, &q->length);
        return pb_wire_ok(m) && q->sql ? 0 : -EBADMSG;
    }
    struct pb_cat_source *sources = calloc(n + 1, sizeof(*sources));
    if (!sources)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        sources[i].rank = (int32_t)pb_wire_u32(m);
        sources[i].pid = (int32_t)pb_wire_u32(m);
        sources[i].fd = pb_wire_u32(m) && taken < m->nfds ? m->fds[taken] : -1;
        if (sources[i].fd >= 0)
            m->fds[taken++] = -1;
    }
    int r = pb_catalog_init(&q->catalog, sources, n, err);
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = pb_archive_read_tables(m, &q->catalog, i);
    if (r < 0)
        return r;
    q->sql = pb_wire_text(m, &q->length);
    return pb_wire_ok(m) && q->sql ? 0 : -EBADMSG;
}

static int send_failure(int fd, int r, const struct pb_err *err)
{
    struct pb_wire m = {0};
    const char *text = pb_err_text(err, r);

    pb_wire_begin(&m, PB_SQL_ERROR);
    pb_wire_put_u32(&m, (uint32_t)-r);
    pb_wire_put_text(&m, text, strlen(text));
    r = pb_wire_send(fd, &m, pb_now_ns() + GRACE_MS * PB_NS_PER_MS);
    pb_wire_done(&m);
    return r;
}

static uint64_t resident_pages(const struct worker *w)
{
    char text[128];
    unsigned long long pages = 0;

    ssize_t n = w->statm < 0 ? -1 : pread(w->statm, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return sscanf(text, "%*u %llu", &pages) == 1 ? pages : 0;
}

/* Whether a stopped query has left much memory behind. */
static bool is_bloated(const struct worker *w)
{
    pb_pool_clear();
    malloc_trim(0);
    return resident_pages(w) > w->idle_pages + MOST_LEFT_BEHIND / (uint64_t)sysconf(_SC_PAGESIZE);
}

static int answer_request(struct worker *w, struct pb_wire *m)
{
    struct pb_engine_request q = {.socket = w->caller, .received = pb_now_ns()};
    struct pb_err err = {0};

    int r = m->type == PB_SQL_REQUEST ? read_request(m, &q, &err) : -EBADMSG;
    if (r < 0) {
        if (!err.text[0])
            pb_fail(&err, r, r == -EBADMSG ? "this is no request that the SQL worker knows" : "%s",
                    strerror(-r));
        int sent = send_failure(w->caller, r, &err);
        /* After an invalid message the start of the next one is unknown. */
        r = r == -EBADMSG ? r : sent;
    } else {
        q.deadline = q.timeout_ms ? q.received + q.timeout_ms * PB_NS_PER_MS : 0;
        begin_watch(w, q.deadline);
        r = pb_engine_run(w->engine, &q);
        set_deadline(w, 0);
    }
    pb_catalog_done(&q.catalog);
    return r == 0 && q.stopped ? -EPIPE : r;
}

static void close_lock(struct worker *w)
{
    if (w->lock >= 0)
        close(w->lock);
    w->lock = -1;
}

static int serve_caller(struct worker *w)
{
    struct pb_wire m = {0};

    int r = say_hello(w), status = 0;
    while (r == 0 && status == 0) {
        r = pb_wire_receive(w->caller, &m, pb_now_ns() + CALLER_IDLE_MS * PB_NS_PER_MS);
        if (r == 0 && m.type == PB_SQL_LOCK && m.nfds == 1) {
            close_lock(w);
            w->lock = m.fds[0];
            m.fds[0] = -1;
            continue;
        }
        if (r == 0)
            status = answer_request(w, &m);
        else if (r == -EBADMSG)
            send_failure(w->caller, r, &(struct pb_err){.text = "this is no message to an SQL worker"});
        else if (r == -EMFILE)
            send_failure(w->caller, r,
                         &(struct pb_err){.text = "too many open files: the SQL worker needs one for each "
                                                  "process (raise ulimit -Hn, or name fewer processes)"});
    }
    for (unsigned i = 0; i < m.nfds; i++)
        if (m.fds[i] >= 0)
            close(m.fds[i]);
    m.nfds = 0;
    pb_wire_done(&m);
    close(w->caller);
    /* Only a broken database, or memory that a query left behind, ends the worker; a caller that leaves,
     * takes no rows or sends invalid messages does not. */
    r = status == -EIO || (status < 0 && is_bloated(w)) ? -EIO : 0;
    close_lock(w);
    return r;
}

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void *work_for_callers(void *arg)
{
    struct worker *w = arg;
    int r = 0;

    while (r == 0 && w->listener >= 0) {
        struct pollfd p = {.fd = w->listener, .events = POLLIN};
        if (poll(&p, 1, PAUSE_MS) == 0) {
            pb_pool_clear();
            malloc_trim(0);
            if (poll(&p, 1, IDLE_MS) <= 0)
                break;
        }
        w->caller = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
        if (w->caller < 0)
            continue;
        if (same_user(w->caller))
            r = serve_caller(w);
        else
            close(w->caller);
    }
    if (w->listener < 0)
        r = serve_caller(w);
    _exit(r < 0 ? 1 : 0);
}

/* --- start --- */

/* Address space, most of it never used: DuckDB does not start with little. */
static uint64_t address_space(const struct pb_limits *limits)
{
    uint64_t half = limits->memory / 2;
    return half > MOST_SPACE ? MOST_SPACE : half < LEAST_SPACE ? LEAST_SPACE : half;
}

/* Memory for a query: at most a quarter of the control group's limit, since the job may share the group. */
static uint64_t query_memory(const struct pb_limits *limits, uint64_t bytes)
{
    uint64_t quarter = limits->memory / 4;
    return quarter < LEAST_ROOM ? LEAST_ROOM : quarter < bytes / 2 ? quarter : bytes / 2;
}

static int start_thread(void *(*f)(void *), struct worker *w)
{
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    /* DuckDB's parser recurses deeply before it refuses deep nesting. */
    pthread_attr_setstacksize(&attributes, STACK);
    int r = -pthread_create(&thread, &attributes, f, w);
    pthread_attr_destroy(&attributes);
    return r;
}

static int start_worker(struct worker *w, const char *archive, struct pb_err *err)
{
    struct pb_limits limits;

    pb_limits_read(&limits);
    pb_limits_volunteer();
    pb_limits_allow_descriptors(); /* one per process, and one more per live table */
    unsigned n = limits.cpus > MAX_THREADS ? MAX_THREADS : limits.cpus;
    uint64_t bytes = address_space(&limits);
    signal(SIGPIPE, SIG_IGN);
    w->wake = eventfd(0, EFD_CLOEXEC);
    w->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    w->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    /* Without pidfd_open (before Linux 5.3, or refused in a container) the caller cannot kill us; we end
     * ourselves when the caller is gone or the deadline has passed. */
    if (w->wake < 0)
        return pb_fail(err, -errno, "the worker cannot start: %s", strerror(errno));
    int r = pb_duck_load(err);
    if (r == 0)
        r = pb_sandbox_bound_memory(bytes, err);
    if (r == 0)
        r = pb_sandbox_enter(archive, err);
    if (r == 0)
        r = pb_engine_open(n, query_memory(&limits, bytes), archive, &w->engine, err);
    w->idle_pages = resident_pages(w);
    return r;
}

int main(int argc, char **argv)
{
    struct worker w = {
        .listener = -1, .caller = -1, .lock = -1, .statm = -1, .watching = PTHREAD_MUTEX_INITIALIZER};
    struct pb_err err = {0};

    pb_children_begin();
    if (argc == 4 && strcmp(argv[1], "parquet") == 0)
        return pb_parquet_write(atoi(argv[2]), argv[3]);
    if (argc == 3 && strcmp(argv[1], "archive") == 0)
        return pb_archive_write(atoi(argv[2]));
    if (argc < 3 || argc > 4 || (strcmp(argv[1], "listen") != 0 && strcmp(argv[1], "serve") != 0)) {
        fputs("probing-sql: it is started by probing, not by hand\n", stderr);
        return 2;
    }
    bool listens = strcmp(argv[1], "listen") == 0;
    int fd = atoi(argv[2]);
    int r = start_worker(&w, argc == 4 ? argv[3] : NULL, &err);
    w.listener = listens ? fd : -1;
    w.caller = listens ? -1 : fd;
    if (r < 0) {
        /* The caller that started this worker is the first to connect: send it the reason. */
        if (listens)
            w.caller = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        send_failure(w.caller, r, &err);
        return 1;
    }
    r = start_thread(work_for_callers, &w);
    if (r < 0)
        return 1;
    watch_query(&w);
    return 0;
}
