/* flame: the stacks of one profile, or of two to compare, folded into one tree of functions.
 *
 * Caller-owned. Nodes are in an array, parents before children, the root first; children hang on their parent
 * with the heaviest first. Lines are folded away unless asked for. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/intern.h"
#include "profile/profile.h"

/* The text of source files. line returns a line, which ends after *ret_length bytes; NULL: there is none. */
struct pb_line_texts {
    const char *(*line)(void *of, const char *file, int line, int *ret_length);
    void *of;
};

struct pb_flame_options {
    bool lines;                        /* a function at two lines is two nodes */
    bool threads;                      /* a level for the threads */
    bool processes;                    /* a level for the processes */
    const struct pb_line_texts *texts; /* for the heat map of lines; NULL: no file can be read */
};

struct pb_flame_node {
    uint32_t parent, child, next; /* PB_PROFILE_NONE: none */
    uint32_t function;            /* in names; PB_PROFILE_NONE: the root */
    int line;
    uint32_t depth;
    uint64_t self[2], total[2]; /* samples, of the first and the second profile */
};

struct pb_flame {
    struct pb_flame_options options;
    struct pb_profile *names; /* holds the functions */
    struct pb_flame_node *at;
    size_t n, cap;
    uint32_t depth; /* of the deepest */
    struct pb_keys keys;
    struct pb_budget budget;
};

int pb_flame_init(struct pb_flame *f, const struct pb_flame_options *options);
void pb_flame_done(struct pb_flame *f);

/* Adds the samples of a profile to a side, 0 or 1. -ENOSPC: the tree is too large. */
int pb_flame_add(struct pb_flame *f, const struct pb_profile *p, int side);

/* Sums up and sorts; once, after everything was added. */
int pb_flame_finish(struct pb_flame *f);

/* A function over a whole profile. */
struct pb_hot {
    uint32_t function; /* of the profile */
    uint64_t self, total;
    uint64_t waiting; /* of self */
    uint64_t gil;     /* of total */
};

/* All functions with samples, the largest self first. The caller frees it. A wait counts as waiting of the
 * innermost function. without: by thread, those that do not count, nor does an event loop that waits for
 * events; NULL: all count. Returns how many. */
int pb_profile_hot(const struct pb_profile *p, const bool *without, struct pb_hot **ret);
/* Whether an event loop of asyncio has nothing to do. */
bool pb_profile_waits_for_events(const struct pb_profile *p, const struct pb_count *c);
