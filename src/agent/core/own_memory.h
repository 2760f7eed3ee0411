/* own_memory: reads memory of this process through the kernel, so that an unmapped address is an error and
 * not a fault. For threads of the agent; of the program's own only where may_open is false (below). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Reads pieces one after the other into `to`, which has room for all. Returns how many bytes were read: stops
 * at a piece that cannot be read. -EFAULT: none; another negative errno: the process may not read. */
ssize_t pb_own_memory_read(const struct iovec *pieces, size_t n, void *to);

/* The same in many small reads. A thread of the program's may not open files, since their descriptors are in
 * its table: begin fails with -EPERM where it would have to, and so do reads. Whoever began calls end. */
struct pb_own_memory {
    bool may_open, is_filtered;
    int file; /* -1: not open */
};

int pb_own_memory_begin(struct pb_own_memory *ret, bool may_open);
ssize_t pb_own_memory_read_more(struct pb_own_memory *memory, const struct iovec *pieces, size_t n, void *to);
void pb_own_memory_end(struct pb_own_memory *memory);
