/* timeline: events in rows on one clock, for the formats with a time axis.
 *
 * A track is a row: a thread, or something else with events (a stream of a GPU, the operators of a
 * framework). A slice is a stretch of time on it: consecutive samples of one stack, or an event with a name.
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
    pid_t pid, tid;              /* tid 0: no thread */
    const char *name, *process;  /* of the thread or the row; "rank 3" */
    const struct pb_profile *of; /* the profile of its stacks; NULL: its slices have names */
    size_t first, n;             /* its slices, by time */
    uint64_t running, waiting;   /* samples, of the slices that are stacks */
};

struct pb_slice {
    uint64_t start, end; /* ns; of samples: the first and the last of them */
    uint32_t track;
    uint32_t what;    /* a node of the track's profile, or a text (pb_timeline_text) */
    uint32_t samples; /* 0: it has a name */
    unsigned flags;   /* of samples */
};

int pb_timeline_new(struct pb_timeline **ret);
void pb_timeline_free(struct pb_timeline *t);

/* Adds the threads of a profile as tracks and its samples as slices. The first profile gives the beginning of
 * the timeline and its clock. -ENOMEM. */
int pb_timeline_add_profile(struct pb_timeline *t, const struct pb_profile *p);

/* Adds a row without a thread, and a slice of it; utc_ns: by the wall clock, as in tables. The texts are
 * copied. Slices of one track may be nested. Negative: -ENOMEM, -EINVAL. */
int pb_timeline_add_track(struct pb_timeline *t, pid_t pid, const char *process, const char *name);
int pb_timeline_add_slice(struct pb_timeline *t, uint32_t track, int64_t utc_ns, uint64_t duration_ns,
                          const char *name);

/* Puts slices in order; once, before they are read. */
int pb_timeline_finish(struct pb_timeline *t);

size_t pb_timeline_ntracks(const struct pb_timeline *t);
const struct pb_track *pb_timeline_track(const struct pb_timeline *t, size_t i);
const struct pb_slice *pb_timeline_slice(const struct pb_timeline *t, size_t i);
size_t pb_timeline_ntexts(const struct pb_timeline *t);
const char *pb_timeline_text(const struct pb_timeline *t, uint32_t text);

/* The profiles in it. */
size_t pb_timeline_nprofiles(const struct pb_timeline *t);
const struct pb_profile *pb_timeline_profile(const struct pb_timeline *t, size_t i);

/* The clocks of the first machine at the beginning. */
struct pb_profile_clocks pb_timeline_start(const struct pb_timeline *t);
