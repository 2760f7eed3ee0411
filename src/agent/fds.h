/* fds: the agent's descriptors, in a table that is not the program's.
 *
 * The resident thread leaves the descriptor table of the process first of all, taking nothing along. From
 * then on its descriptors take no number of the program's, a closefrom of the program does not reach them, no
 * child of a fork inherits them, and exec ends them with the thread. Threads that the resident thread starts
 * share its table; all other threads of the process have none of these descriptors.
 *
 * Where the kernel refuses both calls that do this (before 5.9, with unshare filtered) the table stays the
 * program's. Then each descriptor that is kept has a number well above stdio and is known by what it is
 * (device, inode, type): one that is something else now is never polled, written to or closed again, and the
 * agent ends. In a table of our own all of that holds by itself, and the same functions do nothing more. */
#pragma once

#include <stddef.h>

/* By the resident thread, before it opens anything. -EMFILE with a sentence in why: the table is the
 * program's, and fewer than 16 descriptors would be left to it. */
int pb_fds_begin(char *why, size_t why_size);

/* Has the calling thread leave the program's table for one with the same stdio, where every number that the
 * program uses is taken: for code that opens and closes files by the C library, in front of which a library
 * of the program's may keep books of descriptors by their numbers. Negative errno: the program uses too many,
 * or the kernel refuses. */
int pb_fds_leave_numbers(void);

/* Takes over an open descriptor that is to be kept, and returns the number that it has from now on, or
 * negative errno; it is closed then. A negative fd is handed back as it is. */
int pb_fd_keep(int fd);

/* The lowest number that a kept descriptor may have, for one that is opened by another module. */
int pb_fds_floor(void);
/* Keeps a descriptor opened at such a number. */
int pb_fd_keep_here(int fd);

/* Whether it still is what was kept. */
int pb_fd_ours(int fd);
/* The same of all of them. */
int pb_fds_ours(void);
/* Whether there is room for another one, with enough left to the program. */
int pb_fds_room(void);

/* Closes it where it is ours, and forgets it. -1 is allowed. */
void pb_fd_close(int fd);

/* In a forked child: closes what came along, by what it is. */
void pb_fds_forget(void);
