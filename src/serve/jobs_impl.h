/* jobs_impl: shared by jobs.c (the pool, and the way of output) and jobs_child.c (starts a child). */
#pragma once

#include "serve/child.h"
#include "serve/jobs.h"

#include <pthread.h>
#include <stdint.h>

enum { PB_JOB_ERRORS_MAX = 4096, PB_JOB_FOLDER = 512 };

struct pb_serve_jobs {
    pthread_mutex_t lock; /* of this and of every job */
    pthread_t thread;
    struct pb_serve_job *first;
    unsigned most, queries, queued; /* most, queries: limits of running jobs and queries */
    int epoll, wake;
    bool ending;
    char folder[PB_JOB_FOLDER];
};

/* Output on its way to the reader. */
struct pb_job_pipe {
    int fd; /* -1: ended */
    char *buffer;
    size_t size, start, end; /* start to end is not read yet */
    bool paused;             /* the buffer is full, and fd not watched */
};

struct pb_serve_job {
    struct pb_serve_jobs *jobs;
    struct pb_serve_job *next;
    pid_t pid;
    int pidfd, in; /* -1: none */
    /* By enum pb_serve_job_stream. Without a dialog the errors are for pb_serve_job_result. */
    struct pb_job_pipe streams[2];
    bool queued; /* it waits for a place, with its plan: */
    struct pb_serve_job_plan plan;
    struct pb_credentials credentials;
    bool query, dialog;
    bool released, waiting, late, silent, over;
    bool lost;        /* it was killed and has not ended: it takes no place any more, and is reaped when it
                       * ends */
    unsigned signals; /* signals sent to end it */
    bool look;        /* an event came for it; else it is checked every LOOK_MS */
    bool dropped;     /* its output was dropped, since its client does not read */
    uint64_t deadline;
    int client;
    uint64_t moved; /* when the client last read, or output arrived in the empty buffer */
    int status;
    void (*resume)(void *arg);
    void *arg;
    char folder[PB_JOB_FOLDER + 32], file[64]; /* "": none */
    char errors[PB_JOB_ERRORS_MAX];
};

/* Starts the child; the caller holds the lock. The job owns what this opened, also after a failure. */
int pb_serve_job_spawn(struct pb_serve_job *job, const struct pb_serve_job_plan *plan);

/* Copies the texts of the plan, which belong to the caller, for a job that is queued. -ENOMEM. */
int pb_serve_job_copy_plan(struct pb_serve_job *job, const struct pb_serve_job_plan *plan);
void pb_serve_job_free_plan(struct pb_serve_job *job);
