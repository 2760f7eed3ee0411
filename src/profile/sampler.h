/* sampler: takes the stacks of all threads of processes, tick by tick, into a profile.
 *
 * A sample counts only when it is proved that the thread did not run while it was read (remote/moment.h): it
 * slept; or we run on its CPU in its place; or it alone was stopped, for tens of microseconds. A thread that
 * has not been scheduled since its last sample has not moved: that costs one short read, so idle threads cost
 * almost nothing. Ticks come at a random instant of each period, so that a program with a rhythm is not
 * always sampled at the same beat. If we die, nothing stays stopped. A sampler belongs to one thread of ours
 * (required by ptrace). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "profile/profile.h"
#include "profile/sink.h"

struct pb_err;
struct pb_sampler;

struct pb_sampler_options {
    double rate;       /* ticks a second */
    bool cpu, gil;     /* only samples of threads that run, that hold the GIL */
    bool with_gil;     /* record whether the thread held the GIL: one more read while it is held */
    bool native;       /* native frames too; a process without Python has nothing else */
    bool no_stop;      /* never stop a thread: a stack that cannot be proved otherwise is refused */
    bool force;        /* the nearest layout for an unknown version of CPython */
    bool subprocesses; /* also processes that these start or have started */
    bool no_waits;     /* do not add what a thread waits for as its innermost frame */
    FILE *trace;       /* the path of every sample through steps.h, a line each; NULL: none */
};

/* The profile is the caller's and outlives the sampler: it receives names, stacks and facts, and the samples
 * too if sink is NULL. The sink is copied. */
int pb_sampler_new(const struct pb_sampler_options *options, struct pb_profile *profile,
                   const struct pb_sink *sink, struct pb_sampler **ret);
void pb_sampler_free(struct pb_sampler *s);

/* Adds a process. -ESRCH, -EPERM, -ENOTSUP with a sentence. -EALREADY: it is watched. */
int pb_sampler_attach(struct pb_sampler *s, pid_t pid, const char *label, int32_t rank, struct pb_err *err);

/* Whether a process is watched. */
bool pb_sampler_watches(const struct pb_sampler *s, pid_t pid);

/* Sleeps until the next tick is due. -EINTR: a signal came, or *cancelled (below) became true. */
int pb_sampler_wait(struct pb_sampler *s);

/* Ends a wait within a tenth of a second after *cancelled becomes true, set by any thread or a signal
 * handler; NULL (the default): never. */
void pb_sampler_cancel_by(struct pb_sampler *s, const atomic_bool *cancelled);

/* Samples every thread once. Returns how many of the processes are left; 0: all have ended. An ended process
 * is forgotten except for its samples. A thread that does not stop within 10 ms is refused, and read without
 * a stop for a while; a process may take 20 ms of a tick for such threads, and with several processes no more
 * than its share of a tick for all. */
int pb_sampler_tick(struct pb_sampler *s);

/* Processes that ended meanwhile. */
unsigned pb_sampler_left(const struct pb_sampler *s);

/* Which way running threads are read, and why not a better one; i-th sentence into buf, from 0 on. False:
 * there are no more. */
bool pb_sampler_note(const struct pb_sampler *s, size_t i, char *buf, size_t size);

/* Starts a new epoch of the profile (pb_profile_begin_epoch): keeps the present stacks of the threads and
 * forgets everything else, samples too. Notifies sinks first. Not within a tick. */
int pb_sampler_begin_epoch(struct pb_sampler *s);

/* Updates the facts of the profile. */
void pb_sampler_sum_up(struct pb_sampler *s);

/* How long the main thread of the i-th process has made no progress: the same stack and the same instruction
 * in every sample, without waking up again and again as a polling thread does. A thread that wakes up only to
 * find the GIL taken makes no progress, nor does one that computes in C at one Python instruction. 0: it does
 * make progress, or that is not known yet. limit_ns: the caller's limit, which sets the window for counting
 * wake-ups. Call it about once a second. -ENOENT: there are not so many processes. */
struct pb_stuck {
    pid_t pid;
    const char *label; /* until the next tick */
    uint64_t ns;
};
int pb_sampler_stuck(struct pb_sampler *s, size_t i, uint64_t limit_ns, struct pb_stuck *ret);

/* Gives the calling thread priority, if allowed, so that no thread is held while we wait for a CPU. For a
 * process that does nothing else. */
void pb_sampler_hurry(const struct pb_sampler_options *options);

/* Threads that are watched now. */
unsigned pb_sampler_threads(const struct pb_sampler *s);
