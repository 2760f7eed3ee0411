/* profile_recorder: a profile that goes into tables as it is taken, with what processes and GPUs take of the
 * machine, and with the stacks of a process that stands still.
 *
 * Bounded in size on disk and in memory, for as long as the processes live. Run by one thread of the
 * caller's, as ask/profiles.h has it. */
#pragma once

#include "ask/profiles.h"

struct pb_profile_recorder;

struct pb_profile_recorder_options {
    struct pb_sampler_options sampler;
    const struct pb_targets *targets; /* at least one; the caller's, while it goes on */
    uint64_t duration_ns;             /* 0: no end */
    const atomic_bool *cancelled;
    uint64_t size;        /* of the tables, bytes; 0: 64 MB */
    uint64_t watchdog_ns; /* keep the stacks of a process that stands still that long; 0: no */
    size_t memory_max;    /* of names and stacks; 0: 128 MiB */
    bool follow_rate;     /* go on at the rate that is set for the first process when it changes
                             (probing.sample_rate) */
};

int pb_profile_recorder_open(const struct pb_ask *ask, const struct pb_profile_recorder_options *options,
                             struct pb_profile_recorder **ret, struct pb_err *err);
void pb_profile_recorder_free(struct pb_profile_recorder *r);

/* Until its time is over, it is cancelled, or the processes have ended; what was sampled is written then. */
int pb_profile_recorder_run(struct pb_profile_recorder *r, struct pb_err *err);

/* The folder. Another one when the rate was changed meanwhile: samples of one recording are of one rate. */
const char *pb_profile_recorder_path(const struct pb_profile_recorder *r);
const struct pb_profile *pb_profile_recorder_profile(const struct pb_profile_recorder *r);
const struct pb_sampler *pb_profile_recorder_sampler(const struct pb_profile_recorder *r);
/* How often a process came to a stand. */
unsigned pb_profile_recorder_hangs(const struct pb_profile_recorder *r);
