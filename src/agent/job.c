/* job: see job.h. This file holds a job's life; what it does with Python is in job_python.c. */
#include "agent/job.h"

#include "agent/clock.h"
#include "agent/gil.h"
#include "agent/job_impl.h"
#include "agent/thread.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define JOBS       8
#define GRACE_NS   (2 * PB_NS_PER_S) /* for KeyboardInterrupt to take effect */
#define STACK_SIZE (8u << 20)

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* taken with or without the GIL; never waits for the GIL inside */
static struct pb_job *jobs[JOBS];
static uint64_t next_number = 1;

void pb_job_lock(void)
{
    pthread_mutex_lock(&lock);
}

void pb_job_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

struct pb_job *pb_job_find(uint64_t number)
{
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->number == number)
            return jobs[i];
    return NULL;
}

/* Both the thread and the client must have let go. Called with the lock held. */
static void collect(int i)
{
    struct pb_job *job = jobs[i];
    if (!job->thread_ended || !job->disowned)
        return;
    jobs[i] = NULL;
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
    pthread_cond_wait(&job->room, &lock);
}

void pb_job_end(uint64_t number, enum pb_job_state state, int status)
{
    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->number == number) {
            jobs[i]->state = state;
            jobs[i]->status = status;
            jobs[i]->thread_ended = 1;
            if (!jobs[i]->disowned) /* else the server may be gone, and its descriptor somebody else's */
                pb_server_wake(jobs[i]->server);
            collect(i);
        }
    pb_job_unlock();
}

static struct pb_job *make(struct pb_server *server, const struct pb_job_request *request)
{
    size_t size = sizeof(struct pb_job) + request->code_size;
    struct pb_job *job = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED)
        return NULL;
    job->mapped = size;
    job->server = server;
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

int pb_job_start(struct pb_server *server, const struct pb_job_request *request, char *why, size_t why_size)
{
    int place = 0;

    pb_job_lock();
    while (place < JOBS && jobs[place])
        place++;
    struct pb_job *job = place < JOBS ? make(server, request) : NULL;
    if (job)
        jobs[place] = job;
    pb_job_unlock();
    if (!job) {
        snprintf(why, why_size,
                 place < JOBS ? "no memory for it"
                              : "%d pieces of code are running already; wait for one or stop it",
                 JOBS);
        return place < JOBS ? -ENOMEM : -EBUSY;
    }
    int r = pb_thread_start(pb_job_thread, (void *)(uintptr_t)job->number, STACK_SIZE);
    if (r < 0) {
        snprintf(why, why_size, "the process cannot start a thread: %s", strerror(-r));
        pb_job_lock();
        job->thread_ended = job->disowned = 1;
        collect(place);
        pb_job_unlock();
    }
    return r;
}

/* Called with the lock held. The exception is raised by a thread that may wait for the GIL; the resident may
 * not. */
static void interrupt(struct pb_job *job)
{
    if (job->interrupted_ns)
        return;
    job->interrupted_ns = pb_now_ns();
    pb_thread_start(pb_job_interrupter, (void *)(uintptr_t)job->number, 0);
}

void pb_job_cancel(pb_client_id client, uint32_t request)
{
    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && jobs[i]->client == client && jobs[i]->request == request && !jobs[i]->disowned) {
            jobs[i]->cancelled = 1;
            interrupt(jobs[i]);
        }
    pb_job_unlock();
}

void pb_job_disown(pb_client_id client)
{
    pb_job_lock();
    for (int i = 0; i < JOBS; i++)
        if (jobs[i] && !jobs[i]->disowned && (!client || jobs[i]->client == client)) {
            if (!jobs[i]->thread_ended)
                interrupt(jobs[i]);
            disown(jobs[i]);
            collect(i);
        }
    pb_job_unlock();
}

static void answer_error(struct pb_server *server, struct pb_job *job, int error, const char *text)
{
    pb_server_send_error(server, job->client, job->request, error, text);
    disown(job);
}

/* The frames of a job's output go to its client as they are: whole ones only, as far as there is room. */
static void move_output(struct pb_server *server, struct pb_job *job)
{
    size_t used = 0;
    struct pb_frame frame;
    int n;

    while ((n = pb_frame_parse(job->out + used, job->out_len - used, &frame)) > 0) {
        long room = pb_server_room(server, job->client);
        if (room >= 0 && room < n + 4096) /* leave place for the answer itself */
            break;
        pb_server_send(server, job->client, job->out + used, (size_t)n);
        used += (size_t)n;
    }
    if (used) {
        memmove(job->out, job->out + used, job->out_len - used);
        job->out_len -= used;
        pthread_cond_broadcast(&job->room);
    }
}

static void answer_waiting(struct pb_server *server, struct pb_job *job)
{
    char holder[96], text[256];
    struct pb_python py;

    int known = pb_python_known(&py) == 0;
    if (known && py.minor == 6 && !py.threads_initialized()) {
        answer_error(
            server, job, ETIMEDOUT,
            "this Python 3.6 has no GIL before its main thread runs Python code again, and it sits in C");
        return;
    }
    pid_t tid = known ? pb_gil_holder(&py) : -ENOENT;
    if (tid > 0)
        pb_gil_describe(tid, holder, sizeof(holder));
    snprintf(text, sizeof(text), "the GIL could not be had within %.3g s: %s", (double)job->timeout_ms / 1e3,
             tid > 0          ? "it is held by "
             : tid == 0       ? "nobody holds it now, but threads pass it on too fast"
             : tid == -ENOENT ? "the process is busy loading libraries"
                              : "it is held by a thread that could not be named");
    if (tid > 0)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s", holder);
    answer_error(server, job, ETIMEDOUT, text);
}

static void answer_ended(struct pb_server *server, struct pb_job *job)
{
    char text[128];

    if (job->state == PB_JOB_BROKEN) {
        answer_error(server, job, EIO, job->why);
    } else if (job->interrupted_ns && !job->cancelled && job->status) {
        snprintf(text, sizeof(text), "stopped after %.3g s, its deadline (--timeout gives it more)",
                 (double)job->timeout_ms / 1e3);
        answer_error(server, job, ETIMEDOUT, text);
    } else {
        pb_server_send_done(server, job->client, job->request, job->status);
        disown(job);
    }
}

/* One job's turn; returns when it wants the next, in ns of the clock, 0 for no time in particular. */
static uint64_t attend(struct pb_server *server, struct pb_job *job, uint64_t now)
{
    move_output(server, job);
    if (job->thread_ended) {
        if (job->out_len == 0)
            answer_ended(server, job);
        return 0;
    }
    if (job->interrupted_ns && now > job->interrupted_ns + GRACE_NS) {
        answer_error(server, job, ETIMEDOUT,
                     job->state == PB_JOB_WAITING
                         ? "given up while it waited for the GIL"
                         : "it was told to stop but sits in C code; it stops when that returns");
        return 0;
    }
    if (job->deadline_ns && now > job->deadline_ns && !job->interrupted_ns) {
        if (job->state == PB_JOB_WAITING) {
            answer_waiting(server, job);
            return 0;
        }
        interrupt(job);
    }
    if (job->interrupted_ns)
        return job->interrupted_ns + GRACE_NS;
    return job->deadline_ns;
}

int pb_job_turn(struct pb_server *server)
{
    uint64_t now = pb_now_ns(), soonest = 0;

    pb_job_lock();
    for (int i = 0; i < JOBS; i++) {
        if (!jobs[i])
            continue;
        uint64_t next = jobs[i]->disowned ? 0 : attend(server, jobs[i], now);
        if (next && (!soonest || next < soonest))
            soonest = next;
        collect(i);
    }
    pb_job_unlock();
    return soonest ? soonest <= now ? 0 : (int)((soonest - now) / PB_NS_PER_MS) + 1 : -1;
}

void pb_job_forget_all(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(jobs, 0, sizeof(jobs));
}
