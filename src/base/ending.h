/* ending: ending a process that is not our child, and waiting until it has ended. Also where pidfd_open is
 * not there (before Linux 5.3) or refused (a container's filter). Tools only. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct pb_ending {
    pid_t pid;
    int pidfd;           /* -1: none */
    uint64_t start_time; /* clock ticks after boot: the pid may become another process's */
};

/* start_time: of the process; 0: whichever has the pid now. -ESRCH: it has ended. */
int pb_ending_open(pid_t pid, uint64_t start_time, struct pb_ending *ret);
void pb_ending_close(struct pb_ending *e);
/* -ESRCH: it has ended. */
int pb_ending_signal(const struct pb_ending *e, int signal);
/* 0: it has ended; -ETIMEDOUT. */
int pb_ending_wait(const struct pb_ending *e, unsigned ms);
