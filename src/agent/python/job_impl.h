/* job_impl: struct pb_job, shared by job.c (its life) and job_python.c (its work). Private to them. */
#pragma once

#include "agent/python/job.h"
#include "agent/python/python.h"

#include <pthread.h>

#define PB_JOB_OUT_SIZE (128u << 10)

enum pb_job_state {
    PB_JOB_WAITING, /* for the GIL */
    PB_JOB_LIVE,    /* in a C function; `inside` names it */
    PB_JOB_RUNNING, /* the user's code: may be interrupted */
    PB_JOB_ENDING,
    PB_JOB_ENDED,
    PB_JOB_BROKEN, /* our own part failed; see why */
};

/* Everything but the constant part at the top is guarded by PB_LOCK_JOBS. */
struct pb_job {
    size_t mapped;
    pb_client_id client;
    uint32_t request;
    uint64_t number; /* used by Python code: a pointer could outlive the job in a saved sys.stdout */
    enum pb_run_mode mode;
    uint64_t timeout_ms, deadline_ns;
    char filename[256];

    struct pb_python py; /* used by its thread only, like: */
    pb_pyobject *part;   /* the Python part, kept alive as long as the job runs */

    enum pb_job_state state;
    int status;
    int thread_ended; /* the thread will not touch the job again */
    int disowned;     /* its client was answered or is gone */
    int cancelled;    /* by its client, not by the deadline */
    uint64_t interrupted_ns;
    unsigned long ident; /* the thread as Python names it */
    char why[200];
    char inside[200];    /* PB_JOB_LIVE: the table and its function, for the answer if it does not return */
    pthread_cond_t room; /* out has room, or the job is disowned */
    size_t out_len;
    uint8_t out[PB_JOB_OUT_SIZE];

    size_t code_size;
    uint8_t code[];
};

void pb_job_lock(void);
void pb_job_unlock(void);
struct pb_job *pb_job_find(uint64_t number); /* with the lock held */

/* With the lock held, in the job's own thread and without the GIL: waits until out has room or the job is
 * disowned. */
void pb_job_wait_for_room(struct pb_job *job);

/* The thread's last call for its job. */
void pb_job_end(uint64_t number, enum pb_job_state state, int status);

/* Thread functions; the argument is the job's number. */
void *pb_job_thread(void *argument);
void *pb_job_interrupter(void *argument);
