/* profile_child: a profile taken by a process of its own, for a program that has other things to do.
 *
 * Sampling traces, handles SIGCHLD, moves between CPUs, asks for a priority and for many descriptors: all
 * that is the child's. What it samples comes as a stream (profile/stream.h) through a socket that the caller
 * polls, and goes to the caller's sink. A caller that does not read makes the child wait, and after ten
 * seconds end; a child that dies is an error of that profile only. Used by one thread at a time; the caller's
 * signals and descriptors do not reach the child. */
#pragma once

#include "ask/profiles.h"

struct pb_profile_child;

struct pb_profile_child_options {
    struct pb_profiling_options profiling; /* cancelled and sinks are not used */
    const struct pb_targets *targets;      /* at least one of them must be one that can be sampled */
    struct pb_sink sink;
    uint64_t every_ns; /* how often samples are sent; 0: 100 ms */
    uint64_t start_ns; /* how long the start may take; 0: 30 s */
};

/* Starts it, and waits until it samples. */
int pb_profile_child_start(const struct pb_profile_child_options *options, struct pb_profile_child **ret,
                           struct pb_err *err);
/* Ends it where it goes on, without its last samples. */
void pb_profile_child_free(struct pb_profile_child *c);

/* Readable when samples have come, or the end. */
int pb_profile_child_fd(const struct pb_profile_child *c);

/* Hands on what has come, without waiting. Returns enum pb_profiling_state. -EPIPE: the child died; -EBADMSG.
 */
int pb_profile_child_read(struct pb_profile_child *c, struct pb_err *err);

/* Asked of the child, which does it between two ticks; a process that cannot be sampled is left out. -EPIPE.
 */
int pb_profile_child_join(struct pb_profile_child *c, const struct pb_target *target);
int pb_profile_child_leave(struct pb_profile_child *c, pid_t pid);
/* It sends what it has, and ends: read until the state says so. */
void pb_profile_child_cancel(struct pb_profile_child *c);

/* Names and facts as far as they have come. */
const struct pb_profile *pb_profile_child_names(const struct pb_profile_child *c);
