/* profiles: takes a profile of processes, for a command or the service.
 *
 * The calling thread samples: it traces, moves between CPUs and opens many files. Processes may join while
 * it runs; samples go into its profile, or to a sink. Nothing is printed. It ends when the duration is over,
 * when the caller cancels it, or when all processes have ended. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ask/targets.h"
#include "profile/sampler.h"
#include "profile/sink.h"

struct pb_ask;
struct pb_err;
struct pb_profiling;

struct pb_profiling_options {
    struct pb_sampler_options sampler;
    uint64_t duration_ns;         /* from the first tick on; 0: no end */
    const atomic_bool *cancelled; /* ends it within 100 ms; set by any thread or a signal handler; NULL */
    size_t memory_max;            /* of names and stacks; 0: 512 MiB */
    const struct pb_sink *sink;   /* gets the samples; unused names are dropped when needed. Copied; NULL */
};

enum pb_profiling_state {
    PB_PROFILING_GOES_ON,
    PB_PROFILING_DONE,      /* the duration is over */
    PB_PROFILING_CANCELLED, /* also by a signal while it waited */
    PB_PROFILING_ENDED,     /* no process is left */
};

int pb_profiling_new(const struct pb_profiling_options *options, struct pb_profiling **ret,
                     struct pb_err *err);
void pb_profiling_free(struct pb_profiling *p);

/* Adds a process. The first one gives the profile its title. */
int pb_profiling_join(struct pb_profiling *p, const struct pb_target *target, struct pb_err *err);
/* The same for several. Those that cannot be sampled are named to ask's note; an error only when none can
 * be. */
int pb_profiling_join_all(struct pb_profiling *p, const struct pb_ask *ask, const struct pb_targets *targets,
                          struct pb_err *err);

/* Samples for that long, or until the end; at least one tick. May be called again while the profile runs. */
enum pb_profiling_state pb_profiling_run(struct pb_profiling *p, uint64_t for_ns);

/* Brings the profile up to date, before it is read. */
void pb_profiling_sum_up(struct pb_profiling *p);

/* Drops samples, and names no longer in use: for a caller that has stored them. */
int pb_profiling_begin_epoch(struct pb_profiling *p);

/* Names and facts, and the samples where there is no sink. Valid as long as p. */
struct pb_profile *pb_profiling_profile(struct pb_profiling *p);
struct pb_sampler *pb_profiling_sampler(struct pb_profiling *p);

/* Reads an earlier profile. name: FILE.folded or FILE.txt, the folder of a recording, or the pid of a
 * recorded process (its newest recording); of a recording only the time from since to until (UTC ns). */
int pb_profile_read(const char *name, int64_t since, int64_t until, struct pb_profile *p, struct pb_err *err);

/* The rate that is set for a process (probing.sample_rate) in samples a second, without asking the
 * process. */
double pb_profiling_set_rate(pid_t pid);
