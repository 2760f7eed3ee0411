/* sampler: takes the stacks of all threads of processes, tick by tick, into a profile.
 *
 * A sample is counted only when it is proved that the thread did not run while it was read (remote/moment.h):
 * it slept; or we run on its CPU in its place; or it was stopped, it alone, for tens of microseconds. A
 * thread that has not been scheduled since its last sample is where it was: that costs one short read, so
 * idle threads cost next to nothing. Ticks come at a random instant of each period: a program with a rhythm
 * of its own is not seen at the same beat over and over. If we die, nothing stays stopped. One sampler
 * belongs to one thread of ours (ptrace wants that). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "profile/profile.h"

struct pb_err;
struct pb_sampler;

struct pb_sampler_options {
    double rate;   /* ticks a second */
    bool cpu, gil; /* only samples of threads that run, that hold the GIL */
    bool with_gil; /* note of every sample whether the thread held the GIL: one more read while it is held */
    bool native;   /* native frames too; a process without Python has nothing else */
    bool no_stop;  /* never stop a thread: one that cannot be proved otherwise is refused */
    bool force;    /* the nearest layout for an unknown version of CPython */
    bool subprocesses; /* also those that the processes start or have started */
    bool no_waits;     /* do not add what a thread waits for as its innermost frame */
};

/* The profile is the caller's, outlives the sampler and is added to. */
int pb_sampler_new(const struct pb_sampler_options *options, struct pb_profile *profile,
                   struct pb_sampler **ret);
void pb_sampler_free(struct pb_sampler *s);

/* Adds a process. -ESRCH, -EPERM, -ENOTSUP with a sentence. */
int pb_sampler_attach(struct pb_sampler *s, pid_t pid, const char *label, struct pb_err *err);

/* Sleeps until the next tick is due. -EINTR: a signal came. */
int pb_sampler_wait(struct pb_sampler *s);

/* Samples every thread once. Returns how many of the processes are left; 0: all have ended. */
int pb_sampler_tick(struct pb_sampler *s);

/* Brings the facts of the profile up to now. */
void pb_sampler_sum_up(struct pb_sampler *s);

/* For how long the main thread of the i-th process has been at the same stack, at the same lines, in every
 * sample; 0 where it is not known. -ENOENT: there are not so many. */
struct pb_stuck {
    pid_t pid;
    const char *label;
    uint64_t ns;
};
int pb_sampler_stuck(const struct pb_sampler *s, size_t i, struct pb_stuck *ret);

/* Threads that are watched now. */
unsigned pb_sampler_threads(const struct pb_sampler *s);
