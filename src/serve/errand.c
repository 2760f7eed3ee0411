/* errand: see errand.h. */
#include "serve/errand.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "serve/child.h"
#include "serve/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    QUERY_NICE = 10,
    BUFFER = 256 * 1024,
    ERRORS = 4096,
    LOOK_MS = 100,
    GRACE_MS = 1000,
    UNREAD_MS = 2000, /* so long a client may leave its buffer full while others wait */
    FOLDER = 512,
    QUEUE = 256,
    OTHERS = 16 /* jobs of one other user, waiting or not */
};

struct pb_errands {
    pthread_mutex_t lock; /* of this and of every job */
    pthread_t thread;
    struct pb_errand *first;
    unsigned most, queries, queued; /* queries: as many of those that run may be */
    int epoll, wake;
    bool ending;
    char folder[FOLDER];
    _Alignas(16) char stack[PB_CHILD_STACK];
};

struct pb_errand {
    struct pb_errands *jobs;
    struct pb_errand *next;
    pid_t pid;
    int pidfd, out, errors_fd; /* -1: ended */
    bool queued;               /* it waits until another one is given back, with its plan: */
    struct pb_errand_plan plan;
    struct pb_as as;
    bool query;
    bool released, waiting, late, silent, paused, over;
    bool lost;        /* it has not ended though it was killed: it has no place any longer, and is reaped when
                       * it can be */
    unsigned signals; /* that it was sent to end it */
    bool look;        /* something has happened to it; without that it is looked at every LOOK_MS */
    bool dropped;     /* its output is not kept any longer, since nobody reads it */
    uint64_t deadline;
    int client;
    uint64_t moved; /* when something was read, or came into the empty buffer */
    int status;
    size_t start, end; /* what of the buffer is not read yet */
    size_t errors_length;
    void (*resume)(void *arg);
    void *arg;
    char folder[FOLDER + 32], file[64]; /* "": none */
    char errors[ERRORS];
    char *buffer; /* BUFFER bytes, once it runs: those that wait are many, and looked through often */
};

static void wake(struct pb_errands *jobs)
{
    uint64_t one = 1;
    (void)!write(jobs->wake, &one, sizeof(one));
}

/* --- the child --- */

/* The input as a file of its own, which nobody has to feed. */
static int open_input(const struct pb_errand_plan *plan)
{
    if (!plan->input)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = memfd_create("input", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (size_t n = 0; n < plan->input_length;) {
        ssize_t more = pwrite(fd, plan->input + n, plan->input_length - n, (off_t)n);
        if (more <= 0) {
            close(fd);
            return more < 0 ? -errno : -EIO;
        }
        n += (size_t)more;
    }
    return fd;
}

static int spawn(struct pb_errand *job, const struct pb_errand_plan *plan)
{
    _cleanup_close_ int in = open_input(plan);
    int out[2], errors[2];

    char *words[PB_AS_WORDS];
    struct pb_as_text text;

    if (in < 0)
        return in;
    char *const *argv = pb_as_command(&job->as, plan->argv, words, &text);
    if (pipe2(out, O_CLOEXEC) < 0)
        return -errno;
    if (pipe2(errors, O_CLOEXEC) < 0) {
        int r = -errno;
        close(out[0]);
        close(out[1]);
        return r;
    }
    const struct pb_child_plan child = {argv,   environ,   job->folder,      in,
                                        out[1], errors[1], job->as.uid != 0, false};
    pid_t pid = pb_child_start(&child, job->jobs->stack); /* the lock is held: the stack is one child's */
    close(out[1]);
    close(errors[1]);
    if (pid < 0) {
        close(out[0]);
        close(errors[0]);
        return pid;
    }
    /* A crowd of them takes no turn from short questions. Not set by the child, for which we wait. */
    if (job->query)
        setpriority(PRIO_PROCESS, (id_t)pid, QUERY_NICE);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    job->pid = pid;
    job->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    job->out = out[0];
    job->errors_fd = errors[0];
    return 0;
}

static void watch(struct pb_errand *job, int fd)
{
    /* A pidfd stays readable from the end of the process on, and it may be long until that can be reaped. */
    struct epoll_event e = {.events = fd == job->pidfd ? EPOLLIN | EPOLLET : EPOLLIN, .data.ptr = job};
    epoll_ctl(job->jobs->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* Closing alone does not end events: a child has copies of all descriptors for a moment after start_program,
 * and an event that comes then is about a job that may be freed. */
static void close_watched(struct pb_errand *job, int *fd)
{
    if (*fd < 0)
        return;
    epoll_ctl(job->jobs->epoll, EPOLL_CTL_DEL, *fd, NULL);
    close(*fd);
    *fd = -1;
}

/* --- what waits --- */

/* What a plan points to belongs to the caller, and is gone when it is this one's turn. */
static int copy_plan(struct pb_errand *job, const struct pb_errand_plan *plan)
{
    size_t n = 0;

    while (plan->argv[n])
        n++;
    char **argv = calloc(n + 1, sizeof(*argv)), *input = NULL;
    bool whole = argv;
    for (size_t i = 0; whole && i < n; i++)
        whole = (argv[i] = strdup(plan->argv[i])) != NULL;
    if (whole && plan->input) {
        input = malloc(plan->input_length + 1);
        whole = input;
        if (input)
            memcpy(input, plan->input, plan->input_length);
    }
    job->plan = (struct pb_errand_plan){
        .argv = argv, .input = input, .input_length = plan->input_length, .limit_ms = plan->limit_ms};
    return whole ? 0 : -ENOMEM;
}

static void free_plan(struct pb_errand *job)
{
    for (size_t i = 0; job->plan.argv && job->plan.argv[i]; i++)
        free(job->plan.argv[i]);
    free((char **)(uintptr_t)job->plan.argv);
    free((char *)(uintptr_t)job->plan.input);
    job->plan = (struct pb_errand_plan){0};
}

/* --- what the thread does, with the lock held --- */

static void tell(struct pb_errand *job)
{
    if (job->waiting && !job->released) {
        job->waiting = false;
        job->resume(job->arg);
    }
}

static void take_output(struct pb_errand *job)
{
    if (job->start == job->end) {
        job->start = job->end = 0;
        job->moved = pb_now_ns();
    }
    while (job->out >= 0 && job->end < BUFFER) {
        ssize_t n = read(job->out, job->buffer + job->end, BUFFER - job->end);
        /* All that it printed was in the pipe when it ended. A process that it has left behind, which the
         * kernel cannot end or another user's rights protect, may hold the pipe as long as it likes. */
        if (n <= 0 && (n == 0 || errno != EAGAIN || !job->pid))
            close_watched(job, &job->out);
        if (n <= 0)
            break;
        job->silent = false;
        job->end += (size_t)n;
    }
    if (job->out >= 0 && job->end == BUFFER && !job->paused) {
        job->paused = true;
        epoll_ctl(job->jobs->epoll, EPOLL_CTL_DEL, job->out, NULL);
    }
    if (job->end > job->start)
        tell(job);
}

static void take_errors(struct pb_errand *job)
{
    char rest[4096];

    while (job->errors_fd >= 0) {
        size_t room = ERRORS - 1 - job->errors_length;
        ssize_t n =
            read(job->errors_fd, room ? job->errors + job->errors_length : rest, room ? room : sizeof(rest));
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0)
            close(pb_take_fd(job->errors_fd));
        else if (room)
            job->errors_length += (size_t)n;
    }
}

/* SIGTERM, then SIGKILL. What is there still after both is a process that the kernel cannot end, or that
 * its user traces. */
static void end_child(struct pb_errand *job)
{
    if (!job->pid || job->lost)
        return;
    if (job->signals == 2) {
        job->lost = job->look = true;
        job->status = 128 + SIGKILL;
        return;
    }
    pb_child_signal(job->pid, job->signals++ ? SIGKILL : SIGTERM);
    job->deadline = pb_now_ns() + GRACE_MS * PB_NS_PER_MS;
}

static void look_for_end(struct pb_errand *job)
{
    if (!job->pid || !pb_child_reap(job->pid, &job->status))
        return;
    job->pid = 0;
    close_watched(job, &job->pidfd);
}

/* libmicrohttpd does not look at a connection that waits for us. One that the client has closed for sending
 * alone is not closed. */
static bool has_left(const struct pb_errand *job)
{
    struct pollfd p = {.fd = job->client};
    return job->client > 0 && !job->released && poll(&p, 1, 0) > 0;
}

/* all: it is looked at even if nothing has happened to it. True: no request uses it any more, and it is
 * reaped where that can be. */
static bool step(struct pb_errand *job, uint64_t now, bool all)
{
    bool left = all && !job->over && has_left(job);
    if (job->queued && (job->released || left || job->jobs->ending)) {
        job->queued = false;
        job->jobs->queued--;
        job->over = true;
        job->status = 1;
        tell(job);
    }
    if (!job->over && !job->queued && (job->look || all)) {
        job->look = false;
        look_for_end(job);
        if (!job->paused)
            take_output(job);
        take_errors(job);
        if (job->pid && (now >= job->deadline || (left && !job->signals))) {
            job->late = job->late || (!job->released && !left);
            end_child(job);
        }
        /* What another user's command has left may hold its output for as long as it likes. */
        bool late = now >= job->deadline && !job->paused;
        bool given_up = job->released || job->jobs->ending || job->lost || late;
        if ((!job->pid || job->lost) && (job->out < 0 || given_up)) {
            job->dropped = job->dropped || job->out >= 0;
            job->over = true;
            tell(job);
        }
    }
    return job->over && job->released && (!job->pid || job->jobs->ending);
}

static void free_job(struct pb_errand *job)
{
    close_watched(job, &job->pidfd);
    close_watched(job, &job->out);
    if (job->errors_fd >= 0)
        close(job->errors_fd);
    if (job->folder[0])
        pb_home_remove(job->folder);
    free_plan(job);
    free(job->buffer);
    free(job);
}

static int start_child(struct pb_errand *job, const struct pb_errand_plan *plan)
{
    job->buffer = malloc(BUFFER);
    int r = job->buffer ? spawn(job, plan) : -ENOMEM;
    if (r < 0)
        return r;
    job->look = true;
    job->deadline = pb_now_ns() + plan->limit_ms * PB_NS_PER_MS;
    watch(job, job->out);
    watch(job, job->pidfd);
    return 0;
}

/* A file that a command has written lies on the disk, and does not count. */
static bool has_unread(const struct pb_errand *job)
{
    return !job->queued && job->end > job->start && !job->folder[0];
}

/* Whether that user gets a place now. */
static bool has_room(const struct pb_errands *jobs, bool query, uid_t uid)
{
    unsigned n = 0, queries = 0, own = 0, own_queries = 0;

    for (const struct pb_errand *job = jobs->first; job; job = job->next) {
        bool runs = job->pid && !job->dropped && !job->lost;
        bool counts = runs || (!job->dropped && has_unread(job));
        n += counts;
        own += counts && job->as.uid == uid;
        queries += job->query && runs;
        own_queries += job->query && runs && job->as.uid == uid;
    }
    return pb_as_may_take(uid, jobs->most, n, own) &&
           (!query || pb_as_may_take(uid, jobs->queries, queries, own_queries));
}

static unsigned count_running(const struct pb_errands *jobs, uid_t uid)
{
    unsigned n = 0;

    for (const struct pb_errand *job = jobs->first; job; job = job->next)
        n += job->pid && job->as.uid == uid;
    return n;
}

/* Of the queued jobs that there is room for one of the user with the fewest running; of that user's the
 * oldest. The list is newest first. */
static struct pb_errand *next_queued(struct pb_errands *jobs)
{
    struct pb_errand *next = NULL;
    unsigned fewest = 0;

    if (!has_room(jobs, false, 0))
        return NULL;
    for (struct pb_errand *job = jobs->first; job; job = job->next) {
        if (!job->queued || !has_room(jobs, job->query, job->as.uid))
            continue;
        unsigned n = count_running(jobs, job->as.uid);
        if (!next || n <= fewest) {
            next = job;
            fewest = n;
        }
    }
    return next;
}

/* Whether the job's user has another one that waits. */
static bool holds_up_own(const struct pb_errand *job)
{
    for (const struct pb_errand *other = job->jobs->first; other; other = other->next)
        if (other->queued && other->as.uid == job->as.uid)
            return true;
    return false;
}

/* Others wait for a place: the client that has read nothing for the longest loses its command, and a query
 * that it holds up its worker. A user who waits for places of that user's own costs nobody else one. */
static void drop_unread(struct pb_errands *jobs, uint64_t now)
{
    const uid_t nobody = (uid_t)-1; /* who has no place yet */
    struct pb_errand *unread = NULL;
    bool full = !has_room(jobs, false, nobody), full_queries = !has_room(jobs, true, nobody);

    for (struct pb_errand *job = jobs->first; job; job = job->next) {
        bool query = job->query && job->pid, own = has_unread(job) && holds_up_own(job);
        bool helps = full || (query && (full_queries || own)) || (own && !has_room(jobs, false, job->as.uid));
        if (has_unread(job) && helps && (!unread || job->moved < unread->moved))
            unread = job;
    }
    if (!unread || now < unread->moved + UNREAD_MS * PB_NS_PER_MS)
        return;
    unread->dropped = unread->look = true;
    unread->start = unread->end = 0;
    close_watched(unread, &unread->out);
    end_child(unread);
}

static void start_queued(struct pb_errands *jobs)
{
    struct pb_errand *next;

    while (jobs->queued && !jobs->ending && (next = next_queued(jobs))) {
        next->queued = false;
        jobs->queued--;
        if (start_child(next, &next->plan) < 0) {
            next->over = true;
            next->status = 127;
            tell(next);
        }
        free_plan(next);
    }
}

static void *run_thread(void *arg)
{
    struct pb_errands *jobs = arg;
    struct epoll_event events[16];
    uint64_t looked = 0;
    bool ended = false;
    int n = 0;

    while (!ended) {
        pthread_mutex_lock(&jobs->lock);
        uint64_t now = pb_now_ns();
        bool all = jobs->ending || now - looked >= LOOK_MS * PB_NS_PER_MS;
        looked = all ? now : looked;
        for (int i = 0; i < n; i++) /* none was freed since: this thread does that */
            if (events[i].data.ptr)
                ((struct pb_errand *)events[i].data.ptr)->look = true;
        for (struct pb_errand **at = &jobs->first; *at;) {
            struct pb_errand *job = *at;
            if (!step(job, now, all)) {
                at = &job->next;
                continue;
            }
            *at = job->next;
            free_job(job);
        }
        start_queued(jobs);
        if (jobs->queued)
            drop_unread(jobs, now);
        bool any = jobs->first != NULL;
        ended = jobs->ending && !any;
        pthread_mutex_unlock(&jobs->lock);
        if (ended)
            break;
        n = epoll_wait(jobs->epoll, events, 16, any ? LOOK_MS : -1);
        for (int i = 0; i < n; i++)
            if (!events[i].data.ptr) {
                uint64_t count;
                (void)!read(jobs->wake, &count, sizeof(count));
            }
    }
    return NULL;
}

/* --- the caller's side --- */

int pb_errands_new(const char *folder, unsigned most, unsigned queries, struct pb_errands **ret,
                   struct pb_err *err)
{
    struct pb_errands *jobs = calloc(1, sizeof(*jobs));
    struct epoll_event e = {.events = EPOLLIN};

    if (!jobs)
        return pb_fail(err, -ENOMEM, "out of memory");
    pthread_mutex_init(&jobs->lock, NULL);
    snprintf(jobs->folder, sizeof(jobs->folder), "%s", folder);
    jobs->most = most;
    jobs->queries = queries;
    jobs->epoll = epoll_create1(EPOLL_CLOEXEC);
    jobs->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = 0;
    if (jobs->epoll < 0 || jobs->wake < 0 || epoll_ctl(jobs->epoll, EPOLL_CTL_ADD, jobs->wake, &e) < 0)
        r = -errno;
    if (r == 0)
        r = -pthread_create(&jobs->thread, NULL, run_thread, jobs);
    if (r < 0) {
        close(jobs->epoll);
        close(jobs->wake);
        pthread_mutex_destroy(&jobs->lock);
        free(jobs);
        return pb_fail(err, r, "the service cannot be started: %s", strerror(-r));
    }
    *ret = jobs;
    return 0;
}

void pb_errands_end(struct pb_errands *jobs)
{
    bool any = true;

    while (any) {
        any = false;
        pthread_mutex_lock(&jobs->lock);
        for (struct pb_errand *job = jobs->first; job; job = job->next) {
            if (!jobs->ending)
                end_child(job);
            any = any || (job->pid && !job->lost) || job->queued;
        }
        jobs->ending = true;
        pthread_mutex_unlock(&jobs->lock);
        wake(jobs);
        pb_sleep_ns(any ? 10 * PB_NS_PER_MS : 0);
    }
}

void pb_errands_free(struct pb_errands *jobs)
{
    if (!jobs)
        return;
    pb_errands_end(jobs);
    pthread_join(jobs->thread, NULL);
    close(jobs->epoll);
    close(jobs->wake);
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}

static int make_folder(struct pb_errand *job, const char *file)
{
    if (!file)
        return 0;
    snprintf(job->folder, sizeof(job->folder), "%s/job-XXXXXX", job->jobs->folder);
    snprintf(job->file, sizeof(job->file), "%s", file);
    if (mkdtemp(job->folder) && pb_as_give(&job->as, AT_FDCWD, job->folder) == 0)
        return 0;
    int r = -errno;
    rmdir(job->folder);
    job->folder[0] = '\0';
    return r;
}

/* Another user's jobs, so that one of them leaves places to the rest. */
static bool has_enough(const struct pb_errands *jobs, uid_t uid)
{
    unsigned n = 0;

    for (const struct pb_errand *job = jobs->first; uid && job; job = job->next)
        n += job->as.uid == uid;
    return n >= OTHERS;
}

int pb_errand_start(struct pb_errands *jobs, const struct pb_errand_plan *plan, struct pb_errand **ret,
                    struct pb_err *err)
{
    struct pb_errand *job = calloc(1, sizeof(*job));

    if (!job)
        return pb_fail(err, -ENOMEM, "out of memory");
    job->jobs = jobs;
    job->pidfd = job->out = job->errors_fd = -1;
    job->silent = true;
    job->resume = plan->resume;
    job->arg = plan->arg;
    job->query = plan->query;
    job->as = plan->as;
    job->client = plan->client;
    pthread_mutex_lock(&jobs->lock);
    bool busy = jobs->ending || jobs->queued == QUEUE || has_enough(jobs, plan->as.uid);
    int r = busy ? -EBUSY : make_folder(job, plan->file);
    /* Whatever waits was looked at when a place came free: it waits for a place that this one cannot take. */
    if (r == 0 && !has_room(jobs, plan->query, plan->as.uid)) {
        r = copy_plan(job, plan);
        job->queued = r == 0;
        jobs->queued += job->queued;
    } else if (r == 0) {
        r = start_child(job, plan);
    }
    if (r == 0) {
        job->next = jobs->first;
        jobs->first = job;
        *ret = job;
    }
    pthread_mutex_unlock(&jobs->lock);
    if (r == 0) {
        wake(jobs);
        return 0;
    }
    free_job(job);
    if (r == -EBUSY)
        return pb_fail(err, r, "as many commands run and wait already as may: ask again");
    return pb_fail(err, r, "the command cannot be started: %s", strerror(-r));
}

/* With the lock held. */
static void wait_for_more(struct pb_errand *job, void (*suspend)(void *arg))
{
    job->waiting = true;
    suspend(job->arg);
}

bool pb_errand_ready(struct pb_errand *job, void (*suspend)(void *arg))
{
    pthread_mutex_lock(&job->jobs->lock);
    bool ready = job->over || (job->end > job->start && !job->folder[0]);
    if (!ready)
        wait_for_more(job, suspend);
    pthread_mutex_unlock(&job->jobs->lock);
    return ready;
}

ssize_t pb_errand_read(struct pb_errand *job, char *ret, size_t size, void (*suspend)(void *arg))
{
    bool go_on = false;

    pthread_mutex_lock(&job->jobs->lock);
    size_t n = job->end - job->start;
    ssize_t r = (ssize_t)(n < size ? n : size);
    if (r)
        memcpy(ret, job->buffer + job->start, (size_t)r);
    job->start += (size_t)r;
    job->moved = pb_now_ns();
    if (r == 0 && job->over) {
        r = job->status || job->dropped ? -EPIPE : 0;
    } else if (r == 0) {
        r = -EAGAIN;
        wait_for_more(job, suspend);
    } else if (job->start == job->end && job->paused) {
        job->paused = false;
        job->look = true;
        watch(job, job->out);
        go_on = true;
    }
    pthread_mutex_unlock(&job->jobs->lock);
    if (go_on)
        wake(job->jobs);
    return r;
}

struct pb_errand_end pb_errand_end(struct pb_errand *job)
{
    pthread_mutex_lock(&job->jobs->lock);
    struct pb_errand_end end = {.over = job->over,
                                .late = job->late,
                                .status = job->status,
                                .silent = job->silent,
                                .errors = job->errors};
    pthread_mutex_unlock(&job->jobs->lock);
    return end;
}

int pb_errand_open_file(struct pb_errand *job)
{
    char path[sizeof(job->folder) + sizeof(job->file) + 1];

    snprintf(path, sizeof(path), "%s/%s", job->folder, job->file);
    return pb_as_open(&job->as, AT_FDCWD, path);
}

void pb_errand_release(struct pb_errand *job)
{
    struct pb_errands *jobs = job->jobs;

    pthread_mutex_lock(&jobs->lock);
    job->released = job->look = true;
    end_child(job);
    pthread_mutex_unlock(&jobs->lock);
    wake(jobs);
}
