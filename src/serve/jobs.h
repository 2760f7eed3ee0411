/* jobs: a command of this program, run in a child, and its output on the way to the client.
 *
 * What is asked of processes waits, traces, forks and may crash: none of that in the service. A command has
 * its own deadline and memory, and what it prints is what a terminal gets. One thread moves the output of all
 * jobs of a pool into bounded buffers. A client that does not read fills its buffer, then the pipe, and
 * delays its own command alone, until that one times out, or until others wait for its place; a client that
 * leaves ends its command.
 *
 * A pool limits how many run at once, and how many of them may be queries: a crowd of queries leaves room for
 * what is answered at once. */
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

/* A client that talks with its command: it writes its input, gets its errors as they come, and may have a
 * terminal. Such a command has a session of its own. */
struct pb_serve_job_dialog {
    char *const *environment;
    const char *folder;             /* where it works; the job's from then on, which removes it */
    const struct winsize *terminal; /* NULL: pipes */
};

struct pb_serve_job_plan {
    char *const *argv; /* argv[0]: the program; ends with NULL */
    const char *input; /* its standard input */
    size_t input_length;
    const char *file; /* it writes this file, in a folder of its own; NULL: what it prints is the answer */
    unsigned limit_ms;
    bool query;                               /* it may take long: it waits rather than those that do not */
    const struct pb_serve_job_dialog *dialog; /* NULL: none. With one it is not queued (-EBUSY) */
    struct pb_credentials credentials;        /* whose rights it has */
    int client;                /* the connection that it is for, open until the release: where its other end
                                * is closed, the command ends; 0: none */
    void (*resume)(void *arg); /* called where a reader was told to wait and there is something now */
    void *arg;
};

/* folder: where jobs that write files may do so. most: at once, and of them so many queries; another user
 * has a part of these places only. */
int pb_serve_jobs_new(const char *folder, unsigned most, unsigned queries, struct pb_serve_jobs **ret,
                      struct pb_err *err);
/* Ends all that run, and waits until they have; readers that wait are resumed. None starts any more. */
void pb_serve_jobs_end(struct pb_serve_jobs *jobs);
/* Ends the thread, when all jobs are released. */
void pb_serve_jobs_free(struct pb_serve_jobs *jobs);

/* Queued where as many run as may; its time begins when it runs. -EBUSY: the queue is full, or this user has
 * too many jobs. */
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
/* A descriptor of its input, nonblocking and the job's; -1: it is closed. */
int pb_serve_job_input(const struct pb_serve_job *job);
void pb_serve_job_close_input(struct pb_serve_job *job);
void pb_serve_job_resize(struct pb_serve_job *job, const struct winsize *size);
void pb_serve_job_signal(struct pb_serve_job *job, int signal);

/* Of a job that is over: */
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

/* Gives the job back, also one that runs: it is ended then. */
void pb_serve_job_release(struct pb_serve_job *job);
