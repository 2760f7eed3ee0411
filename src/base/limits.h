/* limits: how much of the machine a process may take: what the machine has, or what its control group is
 * allowed, whichever is less. A worker that took the machine's memory for its own would have the whole group
 * killed, and the job with it. cgroup v1 and v2. */
#pragma once

#include <stdint.h>

struct pb_limits {
    uint64_t memory; /* bytes */
    unsigned cpus;   /* at least 1 */
};

/* Of the calling process. */
void pb_limits_read(struct pb_limits *ret);

/* The part that is files: membership is the text of /proc/PID/cgroup, root where the hierarchies are mounted.
 * Lowers what *limits has. */
void pb_limits_of_groups(const char *membership, const char *root, struct pb_limits *limits);

/* Where memory runs out, this process is ended before the job; where there is one CPU for both, the job has
 * nine tenths of it. For a process that holds nothing of the job's, before it starts threads. */
void pb_limits_volunteer(void);

/* As many descriptors as the hard limit gives, a quarter of a million at most: what a shell allows of its own
 * accord is a thousand. The programs that this process starts inherit it. */
void pb_limits_allow_descriptors(void);
