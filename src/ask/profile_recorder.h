/* profile_recorder: writes a profile into tables as it is taken, together with the memory and GPU use of the
 * processes, and the stacks of a process that hangs.
 *
 * Bounded in size on disk and in memory, for as long as the processes live. Runs in one thread of the
 * caller's, as ask/profiles.h describes. */
#pragma once

#include "ask/profiles.h"

struct pb_profile_recorder;

struct pb_profile_recorder_options {
    struct pb_sampler_options sampler;
    const struct pb_targets *targets; /* at least one; must outlive the recorder */
    uint64_t duration_ns;             /* 0: no end */
    const atomic_bool *cancelled;
    uint64_t size;        /* of the tables, bytes; 0: 64 MB */
    uint64_t watchdog_ns; /* keep the stacks of a process without progress for this long; 0: off */
    size_t memory_max;    /* of names and stacks; 0: 128 MiB */
    bool shown;           /* /flamegraph shows it at once (pprof) */
    bool follow_rate;     /* change to the new rate when probing.sample_rate of the first process changes */
};

int pb_profile_recorder_open(const struct pb_ask *ask, const struct pb_profile_recorder_options *options,
                             struct pb_profile_recorder **ret, struct pb_err *err);
void pb_profile_recorder_free(struct pb_profile_recorder *r);

/* Runs until the duration is over, it is cancelled, or the processes have ended; then writes the last
 * samples. */
int pb_profile_recorder_run(struct pb_profile_recorder *r, struct pb_err *err);

/* The folder. It changes when the rate changes: a recording has one rate. */
const char *pb_profile_recorder_path(const struct pb_profile_recorder *r);
const struct pb_profile *pb_profile_recorder_profile(const struct pb_profile_recorder *r);
const struct pb_sampler *pb_profile_recorder_sampler(const struct pb_profile_recorder *r);
/* How many hangs were found. */
unsigned pb_profile_recorder_hangs(const struct pb_profile_recorder *r);
