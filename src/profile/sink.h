/* sink: where the samples of a sampler go, as they are taken: a profile or a stream.
 *
 * A sampler's own profile gives names and stacks their numbers; each sample is handed to the sink as a few of
 * these numbers. They are valid until the sampler begins a new epoch: it tells its sink, then forgets them,
 * since a process that runs for weeks makes ever more of them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "profile/profile.h"

struct pb_sample {
    uint64_t when; /* ns, monotonic */
    uint32_t thread, node;
    unsigned flags;  /* enum pb_sample_flags */
    uint32_t weight; /* the ticks that this sample stands for */
};

struct pb_sink {
    void *arg;
    /* Adds a sample; names resolves its numbers. Negative: it was dropped, and counts as failed. */
    int (*add)(void *arg, const struct pb_profile *names, const struct pb_sample *sample);
    /* All numbers become invalid when this returns. NULL: not needed. */
    void (*begin_epoch)(void *arg, const struct pb_profile *names);
};

/* A sink that adds samples to a profile of its own, with its own numbers. Collectors are independent of each
 * other; each may be emptied at any time. */
struct pb_collector {
    struct pb_profile *p;
    uint32_t *nodes, *threads; /* by the number in names: our number + 1; 0: not seen yet */
    size_t nnodes, nthreads;
    pid_t shift; /* added to pids and tids: samples of several machines go into one picture */
};

int pb_collector_init(struct pb_collector *c, size_t memory_max);
void pb_collector_done(struct pb_collector *c);
struct pb_sink pb_collector_sink(struct pb_collector *c);

/* Updates the facts about threads and sampling; call it before the profile is read. */
void pb_collector_sync(struct pb_collector *c, const struct pb_profile *names);
