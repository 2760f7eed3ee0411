/* now: what every Python process of the machine is doing at this moment, one line each: the state of its main
 * thread, the innermost frame of the user's own code, the training step, its memory.
 *
 * Made for repeated calls: open files, and since when a process sleeps, are kept between calls. One
 * thread at a time. */
#pragma once

#include "ask/running.h"
#include "ask/targets.h"
#include "base/err.h"

#include <stdint.h>

struct pb_ask;
struct pb_now;

struct pb_now_line {
    struct pb_running process; /* its command is owned by the pb_now, until the next call */
    char state[64];            /* of its main thread, as pb_stacks_state gives it */
    char function[128], file[256];
    int line;        /* 0: none */
    char worker[64]; /* "worker 3 of rank 1", of a data loader; "": not a worker */
    int64_t step;    /* of python.torch_step; -1: none is recorded */
    double seconds;  /* how long it has slept, or is held; since a worker gave a batch; negative: it runs, or
                          this is not known yet */
    char verdict[512]; /* what holds it or has ended it; "": nothing is known */
    char waits[512];   /* what its main thread waits for; "": nothing is known */
};

struct pb_now_lines {
    const struct pb_now_line *at; /* sorted by pid; valid until the next call */
    size_t n;
};

struct pb_now *pb_now_new(void); /* NULL: out of memory */
void pb_now_free(struct pb_now *now);

/* All processes that may be read, or only the targets where there are any. A process that may not be read, or
 * ends meanwhile, is left out. */
int pb_now_look(struct pb_now *now, const struct pb_ask *ask, const struct pb_targets *targets,
                struct pb_now_lines *ret, struct pb_err *err);
