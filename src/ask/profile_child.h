/* profile_child: takes a profile in a process of its own, for a program that has other things to do.
 *
 * Sampling traces, handles SIGCHLD, moves between CPUs, and asks for a priority and many descriptors: all of
 * that happens in the child. Its samples come as a stream (profile/stream.h) through a socket that the caller
 * polls, and go to the caller's sink. When the caller does not read, the child waits, and ends after ten
 * seconds; a child that dies is an error of that profile only. For one thread at a time; the caller's signals
 * and descriptors do not reach the child. */
#pragma once

#include "ask/profiles.h"

struct pb_profile_child;

struct pb_profile_child_options {
    struct pb_profiling_options profiling; /* cancelled and sinks are not used */
    const struct pb_targets *targets;      /* at least one of them must be possible to sample */
    struct pb_sink sink;
    uint64_t every_ns; /* interval between two sends of samples; 0: 100 ms */
    uint64_t start_ns; /* time limit of the start; 0: 30 s */
};

/* Starts the child, and waits until it samples. */
int pb_profile_child_start(const struct pb_profile_child_options *options, struct pb_profile_child **ret,
                           struct pb_err *err);
/* Ends the child if it still runs, without its last samples. */
void pb_profile_child_free(struct pb_profile_child *c);

/* Readable when there are samples, or at the end. */
int pb_profile_child_fd(const struct pb_profile_child *c);

/* Passes received samples on, without blocking. Returns enum pb_profiling_state. -EPIPE: the child died;
 * -EBADMSG. */
int pb_profile_child_read(struct pb_profile_child *c, struct pb_err *err);

/* Sent to the child, which does it between two ticks; a process that cannot be sampled is left out.
 * -EPIPE. */
int pb_profile_child_join(struct pb_profile_child *c, const struct pb_target *target);
int pb_profile_child_leave(struct pb_profile_child *c, pid_t pid);
/* The child sends its last samples and ends: read until the state says so. */
void pb_profile_child_cancel(struct pb_profile_child *c);

/* Names and facts received so far. */
const struct pb_profile *pb_profile_child_names(const struct pb_profile_child *c);
