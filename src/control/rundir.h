/* rundir: the layout and lifetime of run directories, shared by the agents that make them and the tools that
 * read them.
 *
 *   ROOT/probing-UID/PIDNS-PID-START[.N]/              about  arena  control  secret  config
 *   ROOT/probing-UID/PIDNS-PID-START.of-PID-START[.N]/ about  arena: of a recorder, and of what it records
 *
 * `about` is locked (fcntl) by the process of the run as long as its agent lives, in whatever pid
 * namespace. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define PB_RUNDIR_OF ".of-"

/* The limits on dead runs in one user's directory: the newest stay, up to this size, number and age. */
#define PB_RUNDIR_KEEP_BYTES (1ull << 30)
#define PB_RUNDIR_KEEP_S     (7 * 86400) /* unless the run says otherwise: probing.retention_days */
#define PB_RUNDIR_KEEP_RUNS  200

/* Opens the user's private folder and makes it where it is missing. -EPERM: it belongs to another user, or
 * others may read it; a symbolic link is refused too, since anybody may write to /tmp. */
int pb_rundir_open_own(const char *path);

/* The same for ROOT/probing-UID; also writes its path. */
int pb_rundir_open_user(const char *root, char *path, size_t size);

/* Whether an agent holds the lock on the `about` file behind fd. */
bool pb_rundir_locked(int about_fd);

/* Removes the run `name` below user_fd: the known files, then the directory, unless it holds others. */
void pb_rundir_remove(int user_fd, const char *name);

/* Removes dead runs below user_fd (a directory of ours) beyond those limits, and beyond
 * PB_RUNDIR_KEEP_RUNS. Returns how many. */
int pb_rundir_collect(int user_fd, uint64_t keep_bytes, time_t keep_s);
