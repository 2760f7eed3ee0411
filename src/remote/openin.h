/* openin: opens a file that a target names, below a root of our choice.
 *
 * The path is hostile: no link leads out of the root, and nothing but a regular file is opened, since opening
 * a device or a pipe can have an effect or wait. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Opens path below the root, following links inside it; flags as open(2), without O_CREAT. By openat2; before
 * Linux 5.6, or where a filter refuses that call, step by step. */
int pb_open_below(int root_fd, const char *path, int flags);

/* Whether openat2 was refused so far. */
bool pb_open_without_openat2(void);

/* Opens a name that a target chose: with the rights of its user, links inside the root, and nothing but a
 * regular file of a file system (none of procfs: "self" would be us). inode: it must be this one, 0: any.
 * Returns a descriptor for reading. -ESTALE: it is another file; -EACCES: that user may not read it;
 * -ENXIO: not a regular file. */
struct pb_rights;
int pb_open_named(const struct pb_rights *rights, int root_fd, const char *path, uint64_t inode);

/* The same with our own rights, for names of ours. */
int pb_open_regular(int root_fd, const char *path, uint64_t inode);

/* The same for a descriptor opened with O_PATH, which stays open. */
int pb_reopen_regular(int path_fd, uint64_t inode);

/* Opens the file that pid has mapped there, by the kernel's own link: also where the path is gone or names
 * another file. With our rights: the process had the file open. -EPERM, -EACCES: only root may. */
int pb_open_mapped(pid_t pid, uint64_t start, uint64_t end);

/* The program that pid runs, by the kernel's link. */
int pb_open_program(pid_t pid);

/* As pb_open_named, below the root that pid sees and with its user's rights; 0: our root, our rights. */
int pb_open_in_root(pid_t pid, const char *path, uint64_t inode);
