/* sink: where the samples of a sampler go, as they are taken: a profile, a recording, a stream, several of
 * them.
 *
 * A sampler has one profile of its own, which gives names and stacks their numbers, and hands each sample on
 * as a few numbers of it. What these numbers mean holds until the sampler begins a new epoch: it then forgets
 * them, since a process that runs for weeks makes ever more of them, and tells its sinks before. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profile/profile.h"

struct pb_sample {
    uint64_t when; /* ns, monotonic */
    uint32_t thread, node;
    unsigned flags;  /* enum pb_sample_flags */
    uint32_t weight; /* the ticks that it stands for */
};

struct pb_sink {
    void *arg;
    /* Takes a sample; names says what its numbers mean. Negative: it was not kept, and counts as failed. */
    int (*add)(void *arg, const struct pb_profile *names, const struct pb_sample *sample);
    /* The numbers are forgotten when this returns. NULL: does not matter. */
    void (*begin_epoch)(void *arg, const struct pb_profile *names);
};

/* A sink that adds to the counts and the time line of a profile of its own, by numbers of its own. Several of
 * them beside each other know nothing of each other, and each may be emptied when its reader likes. */
struct pb_collector {
    struct pb_profile *p;
    uint32_t *nodes, *threads; /* by the number that names gives: ours + 1; 0: not met yet */
    size_t nnodes, nthreads;
};

int pb_collector_init(struct pb_collector *c, size_t memory_max);
void pb_collector_done(struct pb_collector *c);
struct pb_sink pb_collector_sink(struct pb_collector *c);

/* Brings what is known of threads and of the sampling up to date; before the profile is read. */
void pb_collector_sync(struct pb_collector *c, const struct pb_profile *names);

/* Forgets samples and names, and gives the memory back. */
int pb_collector_begin_epoch(struct pb_collector *c);
