/* jobs: runs `probing` commands in children and passes their output to the client.
 *
 * Commands wait, trace, fork and may crash, so they do not run in the service. Each has its own deadline and
 * memory, and prints what a terminal gets. One thread moves the output of all jobs of a pool into bounded
 * buffers. A client that does not read fills its buffer, then the pipe, and delays its own command only,
 * until that times out or other jobs wait for its place. A client that disconnects ends its command.
 *
 * A pool limits how many jobs run at once and how many of them may be queries, so that many queries leave
 * room for short commands. */
#pragma once

#include "serve/credentials.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/types.h>

struct pb_err;
struct pb_serve_job;
struct pb_serve_jobs;

enum pb_serve_job_stream { PB_SERVE_JOB_OUTPUT, PB_SERVE_JOB_ERRORS };

/* An interactive command: its input is written while it runs, its errors are a stream, and it may have a
 * terminal. It runs in a new session. */
struct pb_serve_job_dialog {
    char *const *environment;
    const char *folder;             /* working directory; the job removes it in the end */
    const struct winsize *terminal; /* NULL: pipes */
};

struct pb_serve_job_plan {
    char *const *argv; /* argv[0]: the program; ends with NULL */
    const char *input; /* its standard input */
    size_t input_length;
    const char *file; /* the file that it writes, in a new folder; NULL: its output is the answer */
    unsigned limit_ms;
    bool query; /* a query: has fewer places, and a lower priority */
    const struct pb_serve_job_dialog
        *dialog;                       /* NULL: not interactive. Interactive jobs are not queued (-EBUSY) */
    struct pb_credentials credentials; /* whose rights it has */
    int client;                /* the socket of its client, open until the release; the command ends when the
                                * peer closes it. 0: none */
    void (*resume)(void *arg); /* called when there is output after a reader was suspended */
    void *arg;
};

/* folder: where jobs that write files get a folder each. most: running jobs; queries: how many of them may be
 * queries. Another user than the service's gets a share of both. */
int pb_serve_jobs_new(const char *folder, unsigned most, unsigned queries, struct pb_serve_jobs **ret,
                      struct pb_err *err);
/* Ends all jobs and waits for that; suspended readers are resumed. No job starts any more. */
void pb_serve_jobs_end(struct pb_serve_jobs *jobs);
/* Ends the thread, when all jobs are released. */
void pb_serve_jobs_free(struct pb_serve_jobs *jobs);

/* Starts a job, or queues it when too many run; its time begins when it runs. -EBUSY: the queue is full,
 * or the user has too many jobs. */
int pb_serve_job_start(struct pb_serve_jobs *jobs, const struct pb_serve_job_plan *plan,
                       struct pb_serve_job **ret, struct pb_err *err);

/* True: there is output, or the job is over. False: suspend was called, under the lock that resume is called
 * under, so that none is lost. */
bool pb_serve_job_ready(struct pb_serve_job *job, void (*suspend)(void *arg));

/* The next bytes; 0: that was all; -EAGAIN: suspend was called; -EPIPE: it failed in the middle. */
ssize_t pb_serve_job_read(struct pb_serve_job *job, char *ret, size_t size, void (*suspend)(void *arg));

/* Of a dialog: reads one of its streams; the same results. */
ssize_t pb_serve_job_read_stream(struct pb_serve_job *job, enum pb_serve_job_stream which, char *ret,
                                 size_t size, void (*suspend)(void *arg));
/* The nonblocking descriptor of its input, owned by the job; -1: closed. */
int pb_serve_job_input(const struct pb_serve_job *job);
void pb_serve_job_close_input(struct pb_serve_job *job);
void pb_serve_job_resize(struct pb_serve_job *job, const struct winsize *size);
void pb_serve_job_signal(struct pb_serve_job *job, int signal);

/* The result of a finished job. */
struct pb_serve_job_result {
    bool over;
    bool late;          /* it was ended at its deadline */
    int status;         /* exit status, 128 + n where a signal ended it */
    bool silent;        /* it printed nothing */
    const char *errors; /* the first lines of its standard error; lives as long as the job */
};
struct pb_serve_job_result pb_serve_job_result(struct pb_serve_job *job);
/* Then: the file that it wrote, for reading; -ENOENT. The caller closes it. */
int pb_serve_job_open_file(struct pb_serve_job *job);

/* Releases the job. A running one is ended. */
void pb_serve_job_release(struct pb_serve_job *job);
