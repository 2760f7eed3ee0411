/* errand: a command of this program, run in a child for a request, and its output on the way to the client.
 *
 * What is asked of processes waits, traces, forks and may crash: none of that in the service. A command has
 * its own deadline and memory, and what it prints is what a terminal gets. One thread moves the output of all
 * jobs into bounded buffers. A client that does not read fills its buffer, then the pipe, and holds up its
 * own command alone, until that one's time is over, or until others wait for its place; a client that leaves
 * ends its command.
 *
 * Queries have fewer places than there are: a crowd of them leaves room for what is answered at once. */
#pragma once

#include "serve/as.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pb_err;
struct pb_errand;
struct pb_errands;

struct pb_errand_plan {
    char *const *argv; /* argv[0]: the program; ends with NULL */
    const char *input; /* its standard input */
    size_t input_length;
    const char *file; /* it writes this file, in a folder of its own; NULL: what it prints is the answer */
    unsigned limit_ms;
    bool query;                /* it may take long: it waits rather than those that do not */
    struct pb_as as;           /* whose rights it has */
    int client;                /* the connection that it is for, open until the release: where its other end
                                * is closed, the command ends; 0: none */
    void (*resume)(void *arg); /* called where a reader was told to wait and there is something now */
    void *arg;
};

/* folder: where jobs that write files may do so. most: at once, and of them so many queries; another user
 * has a part of these places only. */
int pb_errands_new(const char *folder, unsigned most, unsigned queries, struct pb_errands **ret,
                   struct pb_err *err);
/* Ends all that run, and waits until they have; readers that wait are resumed. None starts any more. */
void pb_errands_end(struct pb_errands *jobs);
/* Ends the thread, when all jobs are released. */
void pb_errands_free(struct pb_errands *jobs);

/* Where as many run as may it waits for its turn; its time begins then. -EBUSY: too many wait already, or too
 * many of the same other user. */
int pb_errand_start(struct pb_errands *jobs, const struct pb_errand_plan *plan, struct pb_errand **ret,
                    struct pb_err *err);

/* True: there is output, or the job is over. False: suspend was called, under the lock that resume is called
 * under, so that none is lost. */
bool pb_errand_ready(struct pb_errand *job, void (*suspend)(void *arg));

/* The next bytes; 0: that was all; -EAGAIN: suspend was called; -EPIPE: it failed in the middle. */
ssize_t pb_errand_read(struct pb_errand *job, char *ret, size_t size, void (*suspend)(void *arg));

/* Of a job that is over: */
struct pb_errand_end {
    bool over;
    bool late;          /* its time was up */
    int status;         /* exit status, 128 + n where a signal ended it */
    bool silent;        /* it printed nothing */
    const char *errors; /* what it said on standard error, the first lines; lives as long as the job */
};
struct pb_errand_end pb_errand_end(struct pb_errand *job);
/* Then: the file that it wrote, for reading; -ENOENT. The caller closes it. */
int pb_errand_open_file(struct pb_errand *job);

/* Gives the job back, also one that runs: it is ended then. */
void pb_errand_release(struct pb_errand *job);
