/* doctor: can this process be probed? Checks each precondition of an injection from outside.
 *
 * Read-only: nothing is attached, nothing in the target changes. pb_inject runs the same function first and
 * fails with the first FAIL row, so `probing doctor` and `probing inject` never disagree. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "inject/seccomp.h"

struct pb_err;
struct pb_procinfo;

enum pb_check_state {
    PB_CHECK_OK,
    PB_CHECK_WARN,
    PB_CHECK_FAIL,
};

struct pb_check {
    const char *name; /* static text: "process", "owner", "ptrace", ... */
    enum pb_check_state state;
    int error;        /* negative errno that pb_inject gives for a FAIL; 0 otherwise */
    char found[160];  /* what is there: "traced by gdb (pid 17)" */
    char remedy[200]; /* how to make it pass; "": nothing to do */
};

/* Environment variable: seccomp filters that cannot be read are assumed to be harmless. */
#define PB_ASSUME_SECCOMP_OK "PROBING_ASSUME_SECCOMP_OK"

/* The maximum number of rows. */
#define PB_CHECKS_MAX 16

/* Writes at most max rows and returns how many. A missing process is a row too, and then the last. */
int pb_inject_check(pid_t pid, struct pb_check *ret, size_t max);

/* The same for a process whose info was read already. */
int pb_inject_check_info(const struct pb_procinfo *p, struct pb_check *ret, size_t max);

/* Whether the process may make the system calls of one command (listen at a port, catch signals), which
 * inject does not check. -EPERM with a sentence: a seccomp filter would kill the process, or cannot be
 * read. */
int pb_inject_check_use(pid_t pid, enum pb_seccomp_use use, struct pb_err *err);
