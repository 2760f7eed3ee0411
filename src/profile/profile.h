/* profile: samples of stacks, in memory: which thread was where, how often, and when.
 *
 * Everything is interned: texts, functions (name and file), frames (a function at a line), and stacks as the
 * nodes of a tree, so that a sample is a number and a stack seen before costs nothing. Memory is bounded:
 * without room a stack is cut at its first new frame, and counted as cut. Filled by the sampler and by the
 * reader of recordings, read by the writers. One thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "remote/moment.h"

struct pb_profile;

#define PB_PROFILE_NONE UINT32_MAX
#define PB_PROFILE_ROOT 0u /* the node above all stacks */

enum pb_frame_kind {
    PB_FRAME_PYTHON,
    PB_FRAME_NATIVE,
    PB_FRAME_WAIT,   /* no function: what the thread waits for, as the innermost frame */
    PB_FRAME_THREAD, /* no function: made by writers that show threads */
    PB_FRAME_PROCESS,
    PB_FRAME_KINDS,
};

/* Of a sample. */
enum pb_sample_flags {
    PB_SAMPLE_WAITING = 1, /* it was off its CPU, waiting for an event rather than for a CPU */
    PB_SAMPLE_GIL = 2,     /* it held the GIL */
};

struct pb_profile_function {
    const char *name, *file; /* file "": none is known */
    enum pb_frame_kind kind;
};

struct pb_profile_frame {
    uint32_t function;
    int line; /* 0: none */
};

struct pb_node {
    uint32_t parent, frame; /* of the root both are PB_PROFILE_NONE */
    uint32_t depth;
};

struct pb_profile_thread {
    pid_t pid, tid;
    const char *name;    /* "" if it has no name */
    const char *process; /* label of its target, for people: "rank 3", "pid 4711" */
    int32_t rank;        /* of its process; -1: none, or not known (of stored profiles) */
    bool ran;            /* it was on a CPU at some time between two of its samples */
    bool hidden;         /* writers leave it out */
};

/* How often a thread was at a node, in all. */
struct pb_count {
    uint32_t thread, node;
    unsigned flags;
    uint64_t samples;
};

/* The same from one sample to the next: samples in a row, the first at start, the last at end (ns,
 * monotonic).
 */
struct pb_profile_span {
    uint64_t start, end;
    uint32_t thread, node;
    unsigned flags;
    uint32_t samples;
};

/* The clocks of a machine at one instant. */
struct pb_profile_clocks {
    uint64_t monotonic_ns;
    uint64_t boot_ns; /* since it was started, suspended or not; 0: not known */
    int64_t utc_ns;
};
void pb_profile_clocks_now(struct pb_profile_clocks *ret);

/* What was sampled, and how well. */
struct pb_profile_facts {
    char title[256];   /* the command line, or another title */
    const char *clock; /* "wall", "CPU", "GIL" */
    double rate;       /* wanted, a second; 0: not known */
    struct pb_profile_clocks start;
    uint64_t duration_ns;
    uint64_t ticks; /* instants at which all threads were looked at */
    uint64_t late;  /* instants that passed before the sampler got to them */
    uint64_t asleep, interrupted, pinned, stopped, dead; /* stacks by the way they were proved */
    uint64_t refused;                                    /* no allowed way could prove the stack: no sample */
    uint64_t failed;                                     /* could not be read for another reason: no sample */
    uint64_t truncated;                                  /* samples whose stack is cut */
    uint64_t apart;   /* samples whose native and Python frames did not fit together */
    uint64_t outside; /* samples left out by --gil or --cpu */
    unsigned processes;
    bool unverified; /* the layout for this version of CPython was not verified */
};

/* memory_max 0: 512 MiB. */
int pb_profile_new(size_t memory_max, struct pb_profile **ret);
void pb_profile_free(struct pb_profile *p);

struct pb_profile_facts *pb_profile_facts(struct pb_profile *p);
const struct pb_profile_facts *pb_profile_facts_of(const struct pb_profile *p);

/* "wall", "CPU" or "GIL" for a text that is one of them, else "wall". */
const char *pb_profile_clock_named(const char *text);

/* Interning. Texts are copied; control characters and bytes that are not UTF-8 are replaced by '?'.
 * PB_PROFILE_NONE: there is no room for a new one. */
uint32_t pb_profile_function(struct pb_profile *p, enum pb_frame_kind kind, const char *name,
                             const char *file);
uint32_t pb_profile_frame(struct pb_profile *p, uint32_t function, int line);
uint32_t pb_profile_node(struct pb_profile *p, uint32_t parent, uint32_t frame);
uint32_t pb_profile_thread(struct pb_profile *p, pid_t pid, pid_t tid, const char *name, const char *process);

/* A thread of a process that is a rank; whose name became known later; or that was seen to run. */
void pb_profile_rank_thread(struct pb_profile *p, uint32_t thread, int32_t rank);
void pb_profile_name_thread(struct pb_profile *p, uint32_t thread, const char *name);
void pb_profile_mark_ran(struct pb_profile *p, uint32_t thread);

/* Hides the threads that never ran, unless none did. Returns how many are hidden. */
size_t pb_profile_hide_idle(struct pb_profile *p);

/* Adds n samples of thread at node, at when. Samples that do not fit into the time line are still counted. */
int pb_profile_add(struct pb_profile *p, uint32_t thread, uint32_t node, unsigned flags, uint64_t when,
                   uint32_t n);

/* The same for a span as it was recorded. */
int pb_profile_add_span(struct pb_profile *p, const struct pb_profile_span *span);

/* Forgets counts and spans; everything interned keeps its number. */
void pb_profile_forget_samples(struct pb_profile *p);

/* Forgets samples and interned names and frees the memory, except for these nodes and threads, which get new
 * numbers in the arrays (PB_PROFILE_NONE stays). The facts stay. For samplers that run for longer than the
 * memory would last. -ENOMEM: nothing has changed. */
int pb_profile_begin_epoch(struct pb_profile *p, uint32_t *nodes, size_t nnodes, uint32_t *threads,
                           size_t nthreads);

/* The used part of its memory, 0 to 1. */
double pb_profile_filled(const struct pb_profile *p);

/* Everything there is, by index. Pointers live as long as the profile and nothing is added. */
size_t pb_profile_nfunctions(const struct pb_profile *p);
size_t pb_profile_nframes(const struct pb_profile *p);
size_t pb_profile_nnodes(const struct pb_profile *p);
size_t pb_profile_nthreads(const struct pb_profile *p);
size_t pb_profile_ncounts(const struct pb_profile *p);
size_t pb_profile_nspans(const struct pb_profile *p);
struct pb_profile_function pb_profile_function_at(const struct pb_profile *p, uint32_t function);
struct pb_profile_frame pb_profile_frame_at(const struct pb_profile *p, uint32_t frame);
struct pb_node pb_profile_node_at(const struct pb_profile *p, uint32_t node);
struct pb_profile_thread pb_profile_thread_at(const struct pb_profile *p, uint32_t thread);
struct pb_count pb_profile_count_at(const struct pb_profile *p, size_t i);
struct pb_profile_span pb_profile_span_at(const struct pb_profile *p,
                                          size_t i); /* by start within a thread */

/* Of threads that are not hidden. */
uint64_t pb_profile_samples(const struct pb_profile *p);

/* Sets whether frames of the interpreter itself (interpreter.h) are left out of stacks, so that their cost
 * counts for their caller. Nothing is forgotten. Returns whether there are such frames. */
bool pb_profile_fold_interpreter(struct pb_profile *p, bool fold);

/* Whether frames of this function are left out. */
bool pb_profile_folds(const struct pb_profile *p, uint32_t function);

/* The frames of a node, innermost first, at most max; without folded ones, unless it has no others. Returns
 * how many. */
size_t pb_profile_stack(const struct pb_profile *p, uint32_t node, uint32_t *ret_frames, size_t max);

/* True: spans are missing since there was no room for more (counts are whole). */
bool pb_profile_timeline_cut(const struct pb_profile *p);

/* The file without uninteresting folders: "torch/nn/modules/module.py", "train.py". Points into file. */
const char *pb_profile_short_file(const char *file);

/* "model.forward (train.py)": for a person. Cut to size, at a character. Returns buf. */
const char *pb_profile_label(const struct pb_profile *p, uint32_t function, char *buf, size_t size);

/* "asleep 71.2%, stopped 28.8%; 0 refused, 0 truncated": shown with every profile. */
const char *pb_profile_methods(const struct pb_profile *p, char *buf, size_t size);
