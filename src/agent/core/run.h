/* run: the directory of a run: its tables, its control socket, its description.
 *
 * control/rundir.h has the layout. ROOT is the first usable place (options, shared memory if it has much
 * room, /tmp, /var/tmp), always in the target's own view. The names identify the process; N counts the
 * programs that one process ran one after another by exec. `about` stays locked (fcntl) while the agent
 * lives, which distinguishes a live run from a dead one in any pid namespace. If no place is writable there
 * is no directory: the tables are a memfd, and clients connect through the door socket, or on kernels where a
 * tool cannot fetch that from the table of a thread, through a socket with an abstract name. Its descriptors
 * are kept by fds.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pb_settings;

struct pb_run_options {
    const char *dir; /* the only place to try, NULL for the usual ones */
    const struct pb_settings *settings;
    const char *host_pid; /* this process as the tool sees it; "" if not known */
};

struct pb_run {
    char root[192], dir[224]; /* "" when there is none */
    int dir_fd, about_fd;
    int listen_fd;   /* bound and listening; -1 without a directory */
    int door[2];     /* a socket pair: tools fetch [1] from this thread's table to connect; [0] is ours */
    int abstract_fd; /* bound and listening; -1: not needed on this kernel */
    char abstract[48];
    int in_shm;     /* the directory is in the machine's shared memory, which other programs need */
    uint64_t bound; /* of the tables: limited by max_memory and the room in the place */
    char secret[40];
};

/* Makes the directory with everything in it but the arena. -errno with a sentence in why; then nothing is
 * left. */
int pb_run_open(const struct pb_run_options *options, struct pb_run *ret, char *why, size_t why_size);

/* Removes the directory and all in it; a directory with unexpected files is left. The server closes
 * listen_fd, abstract_fd and door[0]. */
void pb_run_remove(struct pb_run *run);

/* After a detach: the tables stay readable, as those of a program that has ended, until the next agent of
 * this program or the limits of rundir.h remove them. Nobody can connect any more. */
void pb_run_end(struct pb_run *run);

/* Writes the settings into the directory, where tools read them now or when the process has ended. The file
 * is replaced as a whole: on failure the old one stays. Without a directory nothing is written. 0 or negative
 * errno. */
int pb_run_keep_settings(const struct pb_run *run, const struct pb_settings *settings);

/* Closes everything that pb_run_open opened, its sockets too, if no server took them over. */
void pb_run_close(struct pb_run *run);

/* The present bound of the tables: max_memory, or less where the place has less room beside what they take
 * already. */
uint64_t pb_run_bound(const struct pb_run *run, uint64_t max_memory);
