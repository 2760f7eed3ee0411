/* pages: memory that costs only the pages in use, also in a process that locks all its memory.
 *
 * After mlockall(MCL_FUTURE) the kernel fills every new mapping at once, and our mappings are mostly room
 * that is never used. A mapping without access rights is not filled; it is unlocked before it gets them, and
 * then behaves as in any other process. */
#pragma once

#include <stddef.h>

/* Maps zeroed private memory, or a shared file from its beginning. NULL and errno: failed. Given back by
 * munmap. Signal-safe. */
void *pb_pages_map(size_t size);
void *pb_pages_map_shared(size_t size, int fd); /* fd -1: shared with nobody but children */

/* Gives back the part of the calling thread's stack between these two distances below this function, and
 * unlocks it where the process locks all its memory. Returns the argument for pb_pages_keep_stack. */
struct pb_unlocked {
    char *at; /* NULL: nothing was locked */
    size_t size;
};
struct pb_unlocked pb_pages_free_stack(size_t from, size_t to);

/* Before the thread ends: a thread of the program may get its stack, which must be locked again. */
void pb_pages_keep_stack(const struct pb_unlocked *unlocked);
