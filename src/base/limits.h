/* limits: how much memory and how many CPUs a process may use: the machine's, or the limits of its cgroup (v1
 * or v2), whichever is less. A worker that sized itself by the machine would have the whole cgroup killed,
 * and the job with it. */
#pragma once

#include <stdint.h>

struct pb_limits {
    uint64_t memory; /* bytes */
    unsigned cpus;   /* at least 1 */
};

/* The limits of the calling process. */
void pb_limits_read(struct pb_limits *ret);

/* Lowers *limits to those of the cgroups. membership is the text of /proc/PID/cgroup; root is where the
 * hierarchies are mounted. */
void pb_limits_of_groups(const char *membership, const char *root, struct pb_limits *limits);

/* Makes the kernel kill this process before the job when memory runs out, and leaves the job nine tenths of a
 * CPU that both want. Only for a process that holds no state of the job; call it before starting threads. */
void pb_limits_volunteer(void);

/* Raises the limit of descriptors to the hard limit, at most 262,144: the usual soft limit is 1,024. Child
 * processes inherit it. */
void pb_limits_allow_descriptors(void);
