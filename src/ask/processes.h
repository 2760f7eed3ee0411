/* processes: all processes of the machine: their pids, parents and command lines. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pb_ask;
struct pb_err;

struct pb_process {
    pid_t pid, ppid;
    char *command; /* arguments joined by blanks */
};

struct pb_processes {
    struct pb_process *at;
    size_t n;
};

/* All pids of the machine; the caller frees the array. */
int pb_processes_pids(pid_t **ret, size_t *ret_n, struct pb_err *err);

/* Leaves out kernel threads and processes without a command line; notes those that hang in the kernel. */
int pb_processes_read(const struct pb_ask *ask, struct pb_processes *ret, struct pb_err *err);
void pb_processes_done(struct pb_processes *all);

const struct pb_process *pb_processes_find(const struct pb_processes *all, pid_t pid);

/* Whether ancestor is a direct or indirect parent of p. */
bool pb_process_below(const struct pb_processes *all, const struct pb_process *p, pid_t ancestor);
