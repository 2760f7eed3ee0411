/* own_memory: reads memory of this process through the kernel, so that an unmapped address is an error and
 * not a fault. For threads of the agent; the program's own never wait for it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Reads pieces one after the other into `to`, which has room for all. Returns how many bytes were read: stops
 * at a piece that cannot be read. -EFAULT: none; another negative errno: the process may not read. */
ssize_t pb_own_memory_read(const struct iovec *pieces, size_t n, void *to);

/* The same in many small reads: whether a filter of system calls is in place is asked once. */
bool pb_own_memory_is_filtered(void);
ssize_t pb_own_memory_read_as(bool is_filtered, const struct iovec *pieces, size_t n, void *to);
