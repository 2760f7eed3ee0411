/* timeline: threads in rows on one clock, for the formats with a time axis.
 *
 * A track is the row of a thread. A slice is a stretch of time on it: consecutive samples of one stack.
 * The clock is the monotonic one of the first profile's machine; those of other machines are converted by
 * UTC. Made from profiles, which must outlive it and not change; hidden threads are left out. One thread at a
 * time. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "profile/profile.h"

struct pb_timeline;

struct pb_track {
    pid_t pid, tid;
    const char *name, *process;  /* of the thread; "rank 3" */
    const struct pb_profile *of; /* the profile of its stacks */
    size_t first, n;             /* its slices, by time */
    uint64_t running, waiting;   /* samples */
};

struct pb_slice {
    uint64_t start, end; /* ns: the first and the last sample */
    uint32_t track;
    uint32_t node; /* of the track's profile */
    uint32_t samples;
    unsigned flags; /* of samples */
};

int pb_timeline_new(struct pb_timeline **ret);
void pb_timeline_free(struct pb_timeline *t);

/* Adds the threads of a profile as tracks and its samples as slices. The first profile gives the beginning of
 * the timeline and its clock. -ENOMEM. */
int pb_timeline_add_profile(struct pb_timeline *t, const struct pb_profile *p);

/* Puts slices in order; once, before they are read. */
int pb_timeline_finish(struct pb_timeline *t);

size_t pb_timeline_ntracks(const struct pb_timeline *t);
const struct pb_track *pb_timeline_track(const struct pb_timeline *t, size_t i);
const struct pb_slice *pb_timeline_slice(const struct pb_timeline *t, size_t i);

/* The profiles in it. */
size_t pb_timeline_nprofiles(const struct pb_timeline *t);
const struct pb_profile *pb_timeline_profile(const struct pb_timeline *t, size_t i);

/* The clocks of the first machine at the beginning. */
struct pb_profile_clocks pb_timeline_start(const struct pb_timeline *t);
