/* fds: the agent's descriptors, in a table that is not the program's.
 *
 * The resident thread first leaves the descriptor table of the process, with no descriptors. From then on its
 * descriptors take no number of the program's, a closefrom of the program does not reach them, no child of a
 * fork inherits them, and exec ends them with the thread. Threads started by the resident thread share its
 * table; all other threads of the process have none of these descriptors.
 *
 * Where the kernel refuses both ways to leave (before 5.9, with unshare filtered) the table stays the
 * program's. Then each kept descriptor has a number well above stdio and is identified by its device, inode
 * and type: one that is another file now is never polled, written to or closed again, and the agent ends. In
 * a table of our own this holds anyway, and the same functions do nothing more. */
#pragma once

#include <stddef.h>

/* By the resident thread, before it opens anything. -EMFILE with a sentence in why: the table is the
 * program's, and fewer than 16 descriptors would be left for it. */
int pb_fds_begin(char *why, size_t why_size);

/* Makes the calling thread leave the program's table for one with the same stdio, where every number that the
 * program uses is occupied: for code that opens and closes files by the C library, whose functions a library
 * of the program may have wrapped to keep state by descriptor number. Negative errno: the program uses too
 * many, or the kernel refuses. */
int pb_fds_leave_numbers(void);

/* Takes over an open descriptor for keeping, and returns its new number, or negative errno; then it is
 * closed. A negative fd is returned unchanged. */
int pb_fd_keep(int fd);

/* Whether it is still the same file. */
int pb_fd_ours(int fd);
/* The same for all of them. */
int pb_fds_ours(void);
/* Whether there is room for another one, with enough left for the program. */
int pb_fds_room(void);

/* Closes it if it is ours, and forgets it. -1 is allowed. */
void pb_fd_close(int fd);

/* In a forked child: closes inherited descriptors that are still ours. */
void pb_fds_forget(void);
