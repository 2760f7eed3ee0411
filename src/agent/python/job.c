/* job: see job.h. This file has a job's life; job_python.c has its work with Python.
 *
 * The list of jobs is guarded by PB_LOCK_JOBS, which threads of the program take too, some of them with the
 * GIL. So nothing is sent, read or started while it is held: replies are collected under the lock and sent
 * after. */
#include "agent/python/job.h"

#include "agent/core/agent_clock.h"
#include "agent/core/lock.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "agent/python/gil.h"
#include "agent/python/job_impl.h"
#include "table/pages.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define JOBS     8
#define GRACE_NS (2 * PB_NS_PER_S) /* for KeyboardInterrupt to take effect */

static struct pb_job *jobs[JOBS];
static uint64_t next_number = 1;

void pb_job_lock(void)
{
    pb_lock(PB_LOCK_JOBS);
}

void pb_job_unlock(void)
{
    pb_unlock(PB_LOCK_JOBS);
}

struct pb_job *pb_job_find(uint64_t number)
{
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->number == number)
            return jobs[i];
    return NULL;
}

/* Removes a job from the list, with the lock held, when both its thread and its client have released it; else
 * NULL. The caller discards it after releasing the lock. */
static struct pb_job *take_ended(int i)
{
    struct pb_job *job = jobs[i];
    if (!job || !job->thread_ended || !job->disowned)
        return NULL;
    jobs[i] = NULL;
    return job;
}

static void discard(struct pb_job *job)
{
    if (!job)
        return;
    pthread_cond_destroy(&job->room);
    munmap(job, job->mapped);
}

static void disown(struct pb_job *job)
{
    job->disowned = 1;
    pthread_cond_broadcast(&job->room);
}

void pb_job_wait_for_room(struct pb_job *job)
{
    pb_lock_await(PB_LOCK_JOBS, &job->room);
}

void pb_job_end(uint64_t number, enum pb_job_state state, int status)
{
    struct pb_job *ended = NULL;

    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->number == number) {
            jobs[i]->state = state;
            jobs[i]->status = status;
            jobs[i]->thread_ended = 1;
            ended = take_ended(i);
        }
    pb_job_unlock();
    discard(ended);
    pb_wake();
}

/* In the thread that failed to start the job's thread. */
static void could_not_start(void *number, int error)
{
    pb_job_lock();
    struct pb_job *job = pb_job_find((uintptr_t)number);
    if (job)
        snprintf(job->why, sizeof(job->why), "the process cannot start a thread: %s", strerror(-error));
    pb_job_unlock();
    pb_job_end((uintptr_t)number, PB_JOB_BROKEN, 1);
}

static struct pb_job *make_job(const struct pb_job_request *request)
{
    size_t size = sizeof(struct pb_job) + request->code_size;
    struct pb_job *job = pb_pages_map(size);
    if (!job)
        return NULL;
    job->mapped = size;
    job->client = request->client;
    job->request = request->request;
    job->mode = request->mode;
    job->number = next_number++;
    job->deadline_ns = request->timeout_ms ? pb_now_ns() + request->timeout_ms * PB_NS_PER_MS : 0;
    job->timeout_ms = request->timeout_ms;
    job->code_size = request->code_size;
    memcpy(job->code, request->code, request->code_size);
    snprintf(job->filename, sizeof(job->filename), "%s", request->filename);
    pthread_cond_init(&job->room, NULL);
    return job;
}

int pb_job_start(const struct pb_job_request *request, char *why, size_t why_size)
{
    int place = 0;

    pb_thread_read_host_signals();
    struct pb_job *job = make_job(request);
    if (!job) {
        snprintf(why, why_size, "no memory for it");
        return -ENOMEM;
    }
    pb_job_lock();
    while (place < JOBS && jobs[place])
        place++;
    if (place < JOBS)
        jobs[place] = job;
    pb_job_unlock();
    if (place == JOBS) {
        snprintf(why, why_size, "%d pieces of code are running already; wait for one or stop it", JOBS);
        discard(job);
        return -EBUSY;
    }
    int r = pb_spawn(pb_job_thread, could_not_start, (void *)(uintptr_t)job->number);
    if (r < 0) {
        snprintf(why, why_size, "too many threads wait to be started: %s", strerror(-r));
        pb_job_lock();
        jobs[place] = NULL;
        pb_job_unlock();
        discard(job);
    }
    return r;
}

/* Called with the lock held. Another thread raises the exception: that may wait for the GIL, the resident
 * thread may not. */
static void interrupt_job(struct pb_job *job)
{
    if (job->interrupted_ns)
        return;
    job->interrupted_ns = pb_now_ns();
    pb_spawn(pb_job_interrupter, NULL, (void *)(uintptr_t)job->number);
}

void pb_job_cancel(pb_client_id client, uint32_t request)
{
    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->client == client && jobs[i]->request == request && !jobs[i]->disowned) {
            jobs[i]->cancelled = 1;
            interrupt_job(jobs[i]);
        }
    pb_job_unlock();
}

void pb_job_disown(pb_client_id client)
{
    for (int i = 0; i < JOBS; i++) {
        struct pb_job *ended = NULL;
        pb_job_lock();
        if (jobs[i] && !jobs[i]->disowned && (!client || jobs[i]->client == client)) {
            if (!jobs[i]->thread_ended)
                interrupt_job(jobs[i]);
            disown(jobs[i]);
            ended = take_ended(i);
        }
        pb_job_unlock();
        discard(ended);
    }
}

void pb_job_stop_waiting(void)
{
    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        if (jobs[i])
            pthread_cond_broadcast(&jobs[i]->room);
    pb_job_unlock();
}

int pb_job_runs(pb_client_id client)
{
    int runs = 0;

    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        runs += jobs[i] && !jobs[i]->disowned && jobs[i]->client == client;
    pb_job_unlock();
    return runs > 0;
}

/* A reply of the resident thread for a job, sent once the lock is released. */
struct reply {
    enum { SAY_NOTHING, SAY_DONE, SAY_ERROR, SAY_WHO_HOLDS_THE_GIL } what;
    pb_client_id client;
    uint32_t request;
    int error, status;
    uint64_t timeout_ms;
    size_t output; /* bytes of frames in moved */
    char text[256];
};
static uint8_t moved[PB_JOB_OUT_SIZE]; /* the resident thread's */

/* Takes whole frames of a job's output, as far as its client has room. If the client is gone they are
 * dropped. */
static size_t take_output(struct pb_job *job, long room)
{
    size_t used = 0, taken = 0;
    struct pb_frame frame;
    int n;

    while ((n = pb_frame_parse(job->out + used, job->out_len - used, &frame)) > 0) {
        if (room >= 0 && (size_t)room < taken + (size_t)n + 4096) /* leaves room for the answer itself */
            break;
        if (room >= 0) {
            memcpy(moved + taken, job->out + used, (size_t)n);
            taken += (size_t)n;
        }
        used += (size_t)n;
    }
    if (used) {
        memmove(job->out, job->out + used, job->out_len - used);
        job->out_len -= used;
        pthread_cond_broadcast(&job->room);
    }
    return taken;
}

static void answer_error(struct pb_job *job, int error, const char *text, struct reply *ret)
{
    ret->what = SAY_ERROR;
    ret->error = error;
    snprintf(ret->text, sizeof(ret->text), "%s", text);
    disown(job);
}

static void answer_ended(struct pb_job *job, struct reply *ret)
{
    char text[128];

    if (job->state == PB_JOB_BROKEN) {
        answer_error(job, EIO, job->why, ret);
    } else if (job->interrupted_ns && !job->cancelled && job->status) {
        snprintf(text, sizeof(text), "stopped after %.3g s, its deadline (--timeout gives it more)",
                 (double)job->timeout_ms / 1e3);
        answer_error(job, ETIMEDOUT, text, ret);
    } else {
        ret->what = SAY_DONE;
        ret->status = job->status;
        disown(job);
    }
}

/* One job's turn, with the lock held; returns when it needs the next, in ns of the clock, 0: no particular
 * time. */
static uint64_t serve_turn(struct pb_job *job, uint64_t now, long room, struct reply *ret)
{
    ret->output = take_output(job, room);
    if (job->thread_ended) {
        if (job->out_len == 0)
            answer_ended(job, ret);
        return 0;
    }
    if (job->interrupted_ns && now > job->interrupted_ns + GRACE_NS) {
        answer_error(job, ETIMEDOUT,
                     job->state == PB_JOB_WAITING
                         ? "gave up waiting for the GIL"
                         : "the code was interrupted, but is inside a C function; it stops when that returns",
                     ret);
        return 0;
    }
    if (job->deadline_ns && now > job->deadline_ns && !job->interrupted_ns) {
        if (job->state == PB_JOB_LIVE) { /* C code cannot be interrupted: its next row ends it */
            char text[256];
            snprintf(text, sizeof(text), "%s did not return within %.3g s", job->inside,
                     (double)job->timeout_ms / 1e3);
            answer_error(job, ETIMEDOUT, text, ret);
            return 0;
        }
        if (job->state == PB_JOB_WAITING) {
            ret->what = SAY_WHO_HOLDS_THE_GIL;
            ret->timeout_ms = job->timeout_ms;
            disown(job);
            return 0;
        }
        interrupt_job(job);
    }
    if (job->interrupted_ns)
        return job->interrupted_ns + GRACE_NS;
    return job->deadline_ns;
}

/* Sending may find that the client is gone; the server's next turn tells its jobs. */
static void send_reply(struct pb_server *server, const struct reply *reply)
{
    char text[256];

    if (reply->output)
        pb_server_send(server, reply->client, moved, reply->output);
    switch (reply->what) {
    case SAY_NOTHING:
        break;
    case SAY_DONE:
        pb_server_send_done(server, reply->client, reply->request, reply->status);
        break;
    case SAY_ERROR:
        pb_server_send_error(server, reply->client, reply->request, reply->error, reply->text);
        break;
    case SAY_WHO_HOLDS_THE_GIL:
        pb_gil_say_why(reply->timeout_ms, text, sizeof(text)); /* uses Python and /proc: not under the lock */
        pb_server_send_error(server, reply->client, reply->request, ETIMEDOUT, text);
        break;
    }
}

int pb_job_turn(struct pb_server *server)
{
    uint64_t now = pb_now_ns(), soonest = 0;

    for (int i = 0; i < JOBS; i++) {
        struct reply reply = {.what = SAY_NOTHING};
        uint64_t next = 0;

        pb_job_lock();
        struct pb_job *job = jobs[i];
        if (job && !job->disowned) {
            reply.client = job->client;
            reply.request = job->request;
            next = serve_turn(job, now, pb_server_room(server, job->client), &reply);
        }
        struct pb_job *ended = take_ended(i);
        pb_job_unlock();
        discard(ended);
        send_reply(server, &reply);
        if (next && (!soonest || next < soonest))
            soonest = next;
    }
    return soonest ? soonest <= now ? 0 : (int)((soonest - now) / PB_NS_PER_MS) + 1 : -1;
}

/* pb_locks_forget resets the lock. A job's memory stays: the forking thread may be the job's. */
void pb_job_forget_all(void)
{
    memset(jobs, 0, sizeof(jobs));
}
