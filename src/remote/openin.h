/* openin: opens a file that a target names, below a root of our choice.
 *
 * The path is hostile: no link leads out of the root, and nothing but a regular file is opened, since opening
 * a device or a pipe can have an effect or wait. */
#pragma once

#include <stdint.h>

/* inode: it must be this one, 0: any. Returns a descriptor to read from. -ESTALE: it is something else. */
int pb_open_regular(int root_fd, const char *path, uint64_t inode);

/* The same of a descriptor that was opened with O_PATH, and stays open. */
int pb_reopen_regular(int path_fd, uint64_t inode);
