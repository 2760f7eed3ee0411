/* own_memory: memory of this process read by the kernel, so that an address where nothing is mapped is an
 * error and no fault. For threads of the agent; the program's own never wait for it. */
#pragma once

#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Reads pieces one after the other into `to`, which has room for all. Returns how many bytes were read: it
 * ends where a piece cannot be read. -EFAULT: nothing; another negative errno: the process may not read. */
ssize_t pb_own_memory_read(const struct iovec *pieces, size_t n, void *to);
