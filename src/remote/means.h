/* means: the ways in which a sampler can read on this machine with our rights, in sentences for people: for
 * the summary of a profile and for `doctor`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Whether a BPF program can be run in an interrupt of a CPU: tried with an empty one. 0, or a negative
 * errno. */
int pb_means_bpf(void);

/* The cause of that error and its remedy: "permission denied: it needs root (CAP_BPF, CAP_PERFMON)". */
const char *pb_means_why_no_bpf(int error, char *buf, size_t size);

/* Whether the kernel counts how often a thread was given a CPU (schedstat); tried on our own thread. */
bool pb_means_schedstat(void);

/* Whether openat2 is there (Linux 5.6, and no filter that refuses it). */
bool pb_means_openat2(void);
