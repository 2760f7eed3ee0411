/* stackset: the stacks of many threads of many processes: each different stack once, with the threads that
 * have it.
 *
 * Frames and stacks are compared by their visible texts (function, file, line), so they are equal across
 * processes and nodes, and have the same identity everywhere. Sets merge: of processes on one node, and of
 * nodes by the wire form. Ranks are kept as ranges; only the first few threads of a stack are named. Owned by
 * the caller; one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_stacks;
struct pb_stackset;

#define PB_SET_NAMED 16 /* most members of a stack that are named */

struct pb_set_frame {
    uint64_t id; /* the same for an equal frame on any machine */
    bool native;
    const char *function, *file, *module; /* NULL: not known */
    uint32_t line;                        /* 0: not known */
    uint64_t address;                     /* of a native frame without a name: offset in its module's file */
};

struct pb_set_range {
    uint32_t first, last;
};

struct pb_set_member {
    const char *process, *thread; /* "rank 3", "MainThread" */
    int32_t tid;
};

struct pb_set_stack {
    uint64_t id;
    const uint32_t *frames; /* innermost first: numbers for pb_stackset_frame */
    uint32_t nframes;
    bool apart; /* the place of the Python frames among the native ones is unknown */
    uint64_t threads, processes;
    const struct pb_set_range *ranks; /* sorted, never adjacent */
    size_t nranks;
    struct pb_set_member members[PB_SET_NAMED]; /* of different processes, as far as there are several */
    size_t nmembers;
};

int pb_stackset_new(struct pb_stackset **ret);
/* Of an empty set: what is added or merged loses its line numbers, so that stacks of one loop are equal. */
void pb_stackset_drop_lines(struct pb_stackset *set);
void pb_stackset_free(struct pb_stackset *set);

/* Adds all threads of one process. rank -1: none. -ENOMEM, -ENOSPC: a set holds at most 256 MB. */
int pb_stackset_add(struct pb_stackset *set, const struct pb_stacks *s, int32_t rank);

size_t pb_stackset_processes(const struct pb_stackset *set);
size_t pb_stackset_threads(const struct pb_stackset *set); /* that have a stack */
size_t pb_stackset_without(const struct pb_stackset *set); /* that have none */
size_t pb_stackset_n(const struct pb_stackset *set);       /* different stacks */

/* Stack i of n, the rarest first, among equally rare ones the deepest: the outlier comes first. Valid until
 * the set changes. */
void pb_stackset_stack(struct pb_stackset *set, size_t i, struct pb_set_stack *ret);
void pb_stackset_frame(const struct pb_stackset *set, uint32_t number, struct pb_set_frame *ret);

/* The set as bytes for another process, which treats them as untrusted. */
int pb_stackset_encode(const struct pb_stackset *set, void **ret, size_t *ret_size);
/* Adds a set received as bytes: all of it, or nothing if any part is malformed. owns: whether the ranks
 * belong to the sender; NULL: no check. -EBADMSG: malformed; -EPERM: owns returned false; -ENOMEM, -ENOSPC: a
 * part of it may be in the set. */
int pb_stackset_merge(struct pb_stackset *set, const void *bytes, size_t size,
                      bool (*owns)(void *arg, const struct pb_set_range *range), void *arg,
                      struct pb_err *err);
