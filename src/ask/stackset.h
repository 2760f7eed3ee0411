/* stackset: the stacks of many threads of many processes, equal ones once, with the threads that have them.
 *
 * Frames and stacks are equal by what a person reads (function, file, line), so they are equal across
 * processes and nodes, and have the same identity everywhere. Sets merge: of processes on one node, of nodes
 * by way of the wire form. Ranks are kept as ranges; of the threads that have a stack the first few are
 * named. Owned by the caller; one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_stacks;
struct pb_stackset;

#define PB_SET_NAMED 16 /* members of a stack that are named */

struct pb_set_frame {
    uint64_t id; /* the same for an equal frame anywhere */
    bool native;
    const char *function, *file, *module; /* NULL: not known */
    uint32_t line;                        /* 0: not known */
    uint64_t address;                     /* of a native frame without a name: in its module's file */
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
    bool apart; /* where the Python frames belong among the native ones is not known */
    uint64_t threads, processes;
    const struct pb_set_range *ranks; /* sorted, apart from each other */
    size_t nranks;
    struct pb_set_member members[PB_SET_NAMED]; /* of different processes as far as there are several */
    size_t nmembers;
};

int pb_stackset_new(struct pb_stackset **ret);
void pb_stackset_free(struct pb_stackset *set);

/* All threads of one process. rank -1: it has none. -ENOMEM, -ENOSPC: more than a set holds (256 MB). */
int pb_stackset_add(struct pb_stackset *set, const struct pb_stacks *s, int32_t rank);
int pb_stackset_merge(struct pb_stackset *into, const struct pb_stackset *from);

size_t pb_stackset_processes(const struct pb_stackset *set);
size_t pb_stackset_threads(const struct pb_stackset *set); /* that have a stack */
size_t pb_stackset_without(const struct pb_stackset *set); /* that have none */
size_t pb_stackset_n(const struct pb_stackset *set);       /* different stacks */

/* Stack i of n, the rarest first, of equally rare ones the deepest: the odd one out is seen at once. Valid
 * until the set changes. */
void pb_stackset_stack(struct pb_stackset *set, size_t i, struct pb_set_stack *ret);
void pb_stackset_frame(const struct pb_stackset *set, uint32_t number, struct pb_set_frame *ret);

/* The set as bytes for another process, which takes them for hostile. -EBADMSG: they are no set. */
int pb_stackset_encode(const struct pb_stackset *set, void **ret, size_t *ret_size);
int pb_stackset_decode(const void *bytes, size_t size, struct pb_stackset **ret, struct pb_err *err);
