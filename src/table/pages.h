/* pages: memory that takes what is used of it, also in a process that locks all its memory.
 *
 * After mlockall(MCL_FUTURE) the kernel fills every new mapping at once, and a mapping of ours is mostly room
 * that is never used. A mapping that nobody may access is not filled; unlocked before it may be accessed, it
 * is memory as in any other process. */
#pragma once

#include <stddef.h>

/* Maps zeroed memory of this process alone, or of a shared file from its beginning. NULL and errno: it cannot
 * be had. Given back by munmap. Signal-safe. */
void *pb_pages_map(size_t size);
void *pb_pages_map_shared(size_t size, int fd); /* fd -1: shared with nobody but children */

/* What of the calling thread's stack lies between these two distances below this function: given back, and
 * unlocked where the process locks all its memory. Returns what pb_pages_keep_stack wants. */
struct pb_unlocked {
    char *at; /* NULL: nothing was locked */
    size_t size;
};
struct pb_unlocked pb_pages_free_stack(size_t from, size_t to);

/* Before the thread ends: its stack may become one of a thread of the program, which is locked. */
void pb_pages_keep_stack(const struct pb_unlocked *unlocked);
