/* jobs: see jobs.h. */
#include "serve/jobs.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "serve/child.h"
#include "serve/jobs_impl.h"
#include "serve/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BUFFER = 256 * 1024,
    LOOK_MS = 100,
    GRACE_MS = 1000,
    UNREAD_MS = 2000, /* how long a client may leave its buffer full while jobs are queued */
    QUEUE = 256,
    OTHERS = 16 /* jobs of one other user, queued or not */
};

static void wake(struct pb_serve_jobs *jobs)
{
    uint64_t one = 1;
    (void)!write(jobs->wake, &one, sizeof(one));
}

static void watch(struct pb_serve_job *job, int fd)
{
    /* Edge-triggered: a pidfd stays readable from the exit on, and reaping may take long. */
    struct epoll_event e = {.events = fd == job->pidfd ? EPOLLIN | EPOLLET : EPOLLIN, .data.ptr = job};
    epoll_ctl(job->jobs->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* Removes the descriptor from epoll before closing it: between fork and exec a child has a copy, whose events
 * would still arrive, with the address of a freed job. */
static void close_watched(struct pb_serve_job *job, int *fd)
{
    if (*fd < 0)
        return;
    epoll_ctl(job->jobs->epoll, EPOLL_CTL_DEL, *fd, NULL);
    close(*fd);
    *fd = -1;
}

/* --- what the thread does, with the lock held --- */

static void resume_reader(struct pb_serve_job *job)
{
    if (job->waiting && !job->released) {
        job->waiting = false;
        job->resume(job->arg);
    }
}

static void end_stream(struct pb_serve_job *job, struct pb_job_pipe *s)
{
    close_watched(job, &s->fd);
}

static void take_stream(struct pb_serve_job *job, struct pb_job_pipe *s)
{
    bool output = s == &job->streams[PB_SERVE_JOB_OUTPUT], kept = output || job->dialog;
    char rest[4096];

    if (s->start == s->end && kept) {
        s->start = s->end = 0;
        job->moved = output ? pb_now_ns() : job->moved;
    }
    while (s->fd >= 0 && (s->end < s->size || !kept)) {
        bool room = s->end < s->size;
        ssize_t n = read(s->fd, room ? s->buffer + s->end : rest, room ? s->size - s->end : sizeof(rest));
        /* All output was in the pipe when the child ended. A leftover process that cannot be killed may hold
         * the pipe open. */
        if (n <= 0 && (n == 0 || errno != EAGAIN || !job->pid))
            end_stream(job, s);
        if (n <= 0)
            break;
        job->silent = job->silent && !output;
        s->end += room ? (size_t)n : 0;
    }
    if (s->fd >= 0 && s->end == s->size && kept && !s->paused) {
        s->paused = true;
        epoll_ctl(job->jobs->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    }
    if (s->end > s->start && kept)
        resume_reader(job);
}

/* SIGTERM, then SIGKILL. A child that survives both hangs in the kernel or is traced by its user. */
static void end_child(struct pb_serve_job *job)
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

static void look_for_end(struct pb_serve_job *job)
{
    if (!job->pid || !pb_child_reap(job->pid, &job->status))
        return;
    job->pid = 0;
    close_watched(job, &job->pidfd);
}

/* libmicrohttpd does not poll a suspended connection. A half-closed one is still open. */
static bool has_left(const struct pb_serve_job *job)
{
    struct pollfd p = {.fd = job->client};
    return job->client > 0 && !job->released && poll(&p, 1, 0) > 0;
}

/* Advances one job. all: also if no event came for it. True: it is released and can be freed. */
static bool step(struct pb_serve_job *job, uint64_t now, bool all)
{
    bool left = all && !job->over && has_left(job);
    if (job->queued && (job->released || left || job->jobs->ending)) {
        job->queued = false;
        job->jobs->queued--;
        job->over = true;
        job->status = 1;
        resume_reader(job);
    }
    if (!job->over && !job->queued && (job->look || all)) {
        job->look = false;
        look_for_end(job);
        for (int i = 0; i < 2; i++)
            if (!job->streams[i].paused)
                take_stream(job, &job->streams[i]);
        if (job->pid && (now >= job->deadline || (left && !job->signals))) {
            job->late = job->late || (!job->released && !left);
            end_child(job);
        }
        /* A leftover process of another user's command may hold the pipe open. */
        const struct pb_job_pipe *out = &job->streams[PB_SERVE_JOB_OUTPUT],
                                 *errors = &job->streams[PB_SERVE_JOB_ERRORS];
        bool late = now >= job->deadline && !out->paused;
        bool given_up = job->released || job->jobs->ending || job->lost || late;
        bool ended = out->fd < 0 && (errors->fd < 0 || !job->dialog);
        if ((!job->pid || job->lost) && (ended || given_up)) {
            job->dropped = job->dropped || out->fd >= 0;
            job->over = true;
            resume_reader(job);
        }
    }
    return job->over && job->released && (!job->pid || job->jobs->ending);
}

static void free_job(struct pb_serve_job *job)
{
    close_watched(job, &job->pidfd);
    for (int i = 0; i < 2; i++)
        end_stream(job, &job->streams[i]);
    if (job->in >= 0)
        close(job->in);
    if (job->folder[0])
        pb_home_remove(job->folder);
    pb_serve_job_free_plan(job);
    free(job->streams[PB_SERVE_JOB_OUTPUT].buffer);
    if (job->dialog)
        free(job->streams[PB_SERVE_JOB_ERRORS].buffer);
    free(job);
}

/* Allocated when the job starts: there may be many queued jobs. */
static bool make_buffers(struct pb_serve_job *job)
{
    for (int i = 0; i < 2; i++)
        job->streams[i] =
            i == PB_SERVE_JOB_OUTPUT || job->dialog
                ? (struct pb_job_pipe){.fd = -1, .buffer = malloc(BUFFER), .size = BUFFER}
                : (struct pb_job_pipe){.fd = -1, .buffer = job->errors, .size = PB_JOB_ERRORS_MAX - 1};
    return job->streams[0].buffer && job->streams[1].buffer;
}

static int start_child(struct pb_serve_job *job, const struct pb_serve_job_plan *plan)
{
    int r = make_buffers(job) ? pb_serve_job_spawn(job, plan) : -ENOMEM;
    if (r < 0)
        return r;
    job->look = true;
    job->deadline = pb_now_ns() + plan->limit_ms * PB_NS_PER_MS;
    watch(job, job->streams[PB_SERVE_JOB_OUTPUT].fd);
    if (job->dialog && job->streams[PB_SERVE_JOB_ERRORS].fd >= 0)
        watch(job, job->streams[PB_SERVE_JOB_ERRORS].fd);
    watch(job, job->pidfd);
    return 0;
}

/* The file of a command is on disk and does not count. */
static bool has_unread(const struct pb_serve_job *job)
{
    const struct pb_job_pipe *out = &job->streams[PB_SERVE_JOB_OUTPUT];

    return !job->queued && out->end > out->start && !job->file[0];
}

/* Whether the user may start a job now. */
static bool has_room(const struct pb_serve_jobs *jobs, bool query, uid_t uid)
{
    unsigned n = 0, queries = 0, own = 0, own_queries = 0;

    for (const struct pb_serve_job *job = jobs->first; job; job = job->next) {
        bool runs = job->pid && !job->dropped && !job->lost;
        bool counts = runs || (!job->dropped && has_unread(job));
        n += counts;
        own += counts && job->credentials.uid == uid;
        queries += job->query && runs;
        own_queries += job->query && runs && job->credentials.uid == uid;
    }
    return pb_credentials_may_take(uid, jobs->most, n, own) &&
           (!query || pb_credentials_may_take(uid, jobs->queries, queries, own_queries));
}

static unsigned count_running(const struct pb_serve_jobs *jobs, uid_t uid)
{
    unsigned n = 0;

    for (const struct pb_serve_job *job = jobs->first; job; job = job->next)
        n += job->pid && job->credentials.uid == uid;
    return n;
}

/* The oldest queued job that fits now, of the user with the fewest running jobs. The list is newest first. */
static struct pb_serve_job *next_queued(struct pb_serve_jobs *jobs)
{
    struct pb_serve_job *next = NULL;
    unsigned fewest = 0;

    if (!has_room(jobs, false, 0))
        return NULL;
    for (struct pb_serve_job *job = jobs->first; job; job = job->next) {
        if (!job->queued || !has_room(jobs, job->query, job->credentials.uid))
            continue;
        unsigned n = count_running(jobs, job->credentials.uid);
        if (!next || n <= fewest) {
            next = job;
            fewest = n;
        }
    }
    return next;
}

/* Whether its user has a queued job. */
static bool holds_up_own(const struct pb_serve_job *job)
{
    for (const struct pb_serve_job *other = job->jobs->first; other; other = other->next)
        if (other->queued && other->credentials.uid == job->credentials.uid)
            return true;
    return false;
}

/* Jobs are queued: ends the job whose client has not read for longest. A stalled query frees its SQL worker
 * too. Jobs that only wait for their own user's share end no job of others. */
static void drop_unread(struct pb_serve_jobs *jobs, uint64_t now)
{
    const uid_t nobody = (uid_t)-1; /* a user without jobs */
    struct pb_serve_job *unread = NULL;
    bool full = !has_room(jobs, false, nobody), full_queries = !has_room(jobs, true, nobody);

    for (struct pb_serve_job *job = jobs->first; job; job = job->next) {
        bool query = job->query && job->pid, own = has_unread(job) && holds_up_own(job);
        bool helps =
            full || (query && (full_queries || own)) || (own && !has_room(jobs, false, job->credentials.uid));
        if (has_unread(job) && helps && (!unread || job->moved < unread->moved))
            unread = job;
    }
    if (!unread || now < unread->moved + UNREAD_MS * PB_NS_PER_MS)
        return;
    unread->dropped = unread->look = true;
    unread->streams[PB_SERVE_JOB_OUTPUT].start = unread->streams[PB_SERVE_JOB_OUTPUT].end = 0;
    end_stream(unread, &unread->streams[PB_SERVE_JOB_OUTPUT]);
    end_child(unread);
}

static void start_queued(struct pb_serve_jobs *jobs)
{
    struct pb_serve_job *next;

    while (jobs->queued && !jobs->ending && (next = next_queued(jobs))) {
        next->queued = false;
        jobs->queued--;
        if (start_child(next, &next->plan) < 0) {
            next->over = true;
            next->status = 127;
            resume_reader(next);
        }
        pb_serve_job_free_plan(next);
    }
}

static void *run_thread(void *arg)
{
    struct pb_serve_jobs *jobs = arg;
    struct epoll_event events[16];
    uint64_t looked = 0;
    bool ended = false;
    int n = 0;

    while (!ended) {
        pthread_mutex_lock(&jobs->lock);
        uint64_t now = pb_now_ns();
        bool all = jobs->ending || now - looked >= LOOK_MS * PB_NS_PER_MS;
        looked = all ? now : looked;
        for (int i = 0; i < n; i++) /* still allocated: only this thread frees jobs */
            if (events[i].data.ptr)
                ((struct pb_serve_job *)events[i].data.ptr)->look = true;
        for (struct pb_serve_job **at = &jobs->first; *at;) {
            struct pb_serve_job *job = *at;
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

int pb_serve_jobs_new(const char *folder, unsigned most, unsigned queries, struct pb_serve_jobs **ret,
                      struct pb_err *err)
{
    struct pb_serve_jobs *jobs = calloc(1, sizeof(*jobs));
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
        return pb_fail(err, r, "cannot start the service: %s", strerror(-r));
    }
    *ret = jobs;
    return 0;
}

void pb_serve_jobs_end(struct pb_serve_jobs *jobs)
{
    bool any = true;

    while (any) {
        any = false;
        pthread_mutex_lock(&jobs->lock);
        for (struct pb_serve_job *job = jobs->first; job; job = job->next) {
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

void pb_serve_jobs_free(struct pb_serve_jobs *jobs)
{
    if (!jobs)
        return;
    pb_serve_jobs_end(jobs);
    pthread_join(jobs->thread, NULL);
    close(jobs->epoll);
    close(jobs->wake);
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}

static int make_folder(struct pb_serve_job *job, const struct pb_serve_job_plan *plan)
{
    if (plan->dialog)
        snprintf(job->folder, sizeof(job->folder), "%s", plan->dialog->folder);
    if (!plan->file)
        return 0;
    snprintf(job->folder, sizeof(job->folder), "%s/job-XXXXXX", job->jobs->folder);
    snprintf(job->file, sizeof(job->file), "%s", plan->file);
    if (mkdtemp(job->folder) && pb_credentials_give(&job->credentials, AT_FDCWD, job->folder) == 0)
        return 0;
    int r = -errno;
    rmdir(job->folder);
    job->folder[0] = '\0';
    return r;
}

/* Limits the jobs of one other user. */
static bool has_enough(const struct pb_serve_jobs *jobs, uid_t uid)
{
    unsigned n = 0;

    for (const struct pb_serve_job *job = jobs->first; uid && job; job = job->next)
        n += job->credentials.uid == uid;
    return n >= OTHERS;
}

int pb_serve_job_start(struct pb_serve_jobs *jobs, const struct pb_serve_job_plan *plan,
                       struct pb_serve_job **ret, struct pb_err *err)
{
    struct pb_serve_job *job = calloc(1, sizeof(*job));

    if (!job)
        return pb_fail(err, -ENOMEM, "out of memory");
    job->jobs = jobs;
    job->pidfd = job->in = job->streams[0].fd = job->streams[1].fd = -1;
    job->dialog = plan->dialog;
    job->silent = true;
    job->resume = plan->resume;
    job->arg = plan->arg;
    job->query = plan->query;
    job->credentials = plan->credentials;
    job->client = plan->client;
    pthread_mutex_lock(&jobs->lock);
    bool busy = jobs->ending || jobs->queued == QUEUE || has_enough(jobs, plan->credentials.uid);
    int r = busy ? -EBUSY : make_folder(job, plan);
    /* No queued job is overtaken: each was tried when a running job ended, and did not fit. */
    if (r == 0 && !has_room(jobs, plan->query, plan->credentials.uid) && plan->dialog) {
        r = -EBUSY;
    } else if (r == 0 && !has_room(jobs, plan->query, plan->credentials.uid)) {
        r = pb_serve_job_copy_plan(job, plan);
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
        return pb_fail(err, r, "too many commands are running; try again later");
    return pb_fail(err, r, "cannot start the command: %s", strerror(-r));
}

/* With the lock held. */
static void wait_for_more(struct pb_serve_job *job, void (*suspend)(void *arg))
{
    job->waiting = true;
    suspend(job->arg);
}

bool pb_serve_job_ready(struct pb_serve_job *job, void (*suspend)(void *arg))
{
    pthread_mutex_lock(&job->jobs->lock);
    bool ready = job->over || has_unread(job);
    if (!ready)
        wait_for_more(job, suspend);
    pthread_mutex_unlock(&job->jobs->lock);
    return ready;
}

ssize_t pb_serve_job_read_stream(struct pb_serve_job *job, enum pb_serve_job_stream which, char *ret,
                                 size_t size, void (*suspend)(void *arg))
{
    struct pb_job_pipe *s = &job->streams[which];
    bool go_on = false;

    pthread_mutex_lock(&job->jobs->lock);
    size_t n = s->end - s->start;
    ssize_t r = (ssize_t)(n < size ? n : size);
    if (r)
        memcpy(ret, s->buffer + s->start, (size_t)r);
    s->start += (size_t)r;
    job->moved = pb_now_ns();
    if (r == 0 && job->over) {
        r = job->status || job->dropped ? -EPIPE : 0;
    } else if (r == 0) {
        r = -EAGAIN;
        wait_for_more(job, suspend);
    } else if (s->start == s->end && s->paused) {
        s->paused = false;
        job->look = true;
        watch(job, s->fd);
        go_on = true;
    }
    pthread_mutex_unlock(&job->jobs->lock);
    if (go_on)
        wake(job->jobs);
    return r;
}

ssize_t pb_serve_job_read(struct pb_serve_job *job, char *ret, size_t size, void (*suspend)(void *arg))
{
    return pb_serve_job_read_stream(job, PB_SERVE_JOB_OUTPUT, ret, size, suspend);
}

/* --- a dialog --- */

int pb_serve_job_input(const struct pb_serve_job *job)
{
    return job->in;
}

void pb_serve_job_close_input(struct pb_serve_job *job)
{
    if (job->in >= 0)
        close(pb_take_fd(job->in));
}

void pb_serve_job_resize(struct pb_serve_job *job, const struct winsize *size)
{
    if (job->in >= 0)
        ioctl(job->in, TIOCSWINSZ, size);
}

void pb_serve_job_signal(struct pb_serve_job *job, int signal)
{
    pthread_mutex_lock(&job->jobs->lock);
    if (job->pid)
        pb_child_signal(job->pid, signal);
    pthread_mutex_unlock(&job->jobs->lock);
}

struct pb_serve_job_result pb_serve_job_result(struct pb_serve_job *job)
{
    pthread_mutex_lock(&job->jobs->lock);
    struct pb_serve_job_result end = {.over = job->over,
                                      .late = job->late,
                                      .status = job->status,
                                      .silent = job->silent,
                                      .errors = job->errors};
    pthread_mutex_unlock(&job->jobs->lock);
    return end;
}

int pb_serve_job_open_file(struct pb_serve_job *job)
{
    char path[sizeof(job->folder) + sizeof(job->file) + 1];

    snprintf(path, sizeof(path), "%s/%s", job->folder, job->file);
    return pb_credentials_open(&job->credentials, AT_FDCWD, path);
}

void pb_serve_job_release(struct pb_serve_job *job)
{
    struct pb_serve_jobs *jobs = job->jobs;

    pthread_mutex_lock(&jobs->lock);
    job->released = job->look = true;
    end_child(job);
    pthread_mutex_unlock(&jobs->lock);
    wake(jobs);
}
