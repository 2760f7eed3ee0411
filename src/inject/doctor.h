/* doctor: can this process be probed? Each thing that injection needs, looked at from outside.
 *
 * Read-only: nothing is attached, nothing in the target changes. pb_inject runs the same function first and
 * fails with the first row that says FAIL, so `probing doctor` and `probing inject` never disagree. */
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
    char remedy[200]; /* what would lift it; "" when nothing is to be done */
};

/* In the environment: seccomp filters that cannot be read are taken for harmless. */
#define PB_ASSUME_SECCOMP_OK "PROBING_ASSUME_SECCOMP_OK"

/* All rows there can be; an array of this size takes every answer. */
#define PB_CHECKS_MAX 16

/* Writes at most max rows and returns how many. A process that is not there is a row too, and then the last.
 */
int pb_inject_check(pid_t pid, struct pb_check *ret, size_t max);

/* The same of a process that has been looked at already. */
int pb_inject_check_info(const struct pb_procinfo *p, struct pb_check *ret, size_t max);

/* Whether the process may do what one command alone needs (listen at a port, catch signals): inject does not
 * ask for these calls. -EPERM with a sentence: a seccomp filter would kill the process, or cannot be read. */
int pb_inject_check_use(pid_t pid, enum pb_seccomp_use use, struct pb_err *err);
