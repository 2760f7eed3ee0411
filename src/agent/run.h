/* run: the directory in which a run is found: its tables, its control socket, its description.
 *
 * control/rundir.h has the layout. ROOT is the first place that will do (options, shared memory where it is
 * roomy, /tmp, /var/tmp), always in the target's own view. The names say which process it is; N counts the
 * programs that one process ran one after another by exec. `about` stays locked (fcntl) while the agent
 * lives, so that anybody can tell a live run from a dead one in any pid namespace. Where no place is writable
 * there is no directory: the tables are a memfd, and the way in is the door, or on kernels where a tool
 * cannot fetch that from the table of a thread, a socket with an abstract name. Its descriptors are kept by
 * fds.h. */
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
    int door[2];     /* another way in, for whoever may fetch [1] out of this thread's table; [0] is ours */
    int abstract_fd; /* bound and listening; -1: not needed on this kernel */
    char abstract[48];
    int in_shm;     /* the directory is in the machine's shared memory, which others need more */
    uint64_t bound; /* of the tables: what the place has room for, at most max_memory */
    char secret[40];
};

/* Makes the directory with everything in it but the arena. -errno with a sentence in why; nothing is left
 * then. */
int pb_run_open(const struct pb_run_options *options, struct pb_run *ret, char *why, size_t why_size);

/* Removes the directory and all in it; a directory with anything unexpected in it is left. listen_fd,
 * abstract_fd and door[0] are the server's to close. */
void pb_run_remove(struct pb_run *run);

/* Writes the settings into the directory, where tools read them now or when the process has ended. The file
 * is replaced as a whole: where that fails the old one stays. Without a directory there is nothing to write.
 * 0 or negative errno. */
int pb_run_keep_settings(const struct pb_run *run, const struct pb_settings *settings);

/* Closes what pb_run_open opened, the ways in too: where no server took them over. */
void pb_run_close(struct pb_run *run);

/* What the tables may take now: that, or what the place has room for beside what they take there already. */
uint64_t pb_run_bound(const struct pb_run *run, uint64_t max_memory);
