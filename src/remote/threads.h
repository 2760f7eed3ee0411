/* threads: the native threads of a process as the kernel sees them: name, state, system call.
 *
 * A snapshot owned by the caller, sorted by tid. States are of the instant each was read. The kernel's
 * io_uring threads in the process are not listed. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;

struct pb_native_thread {
    pid_t tid;     /* in our pid namespace */
    pid_t ns_tid;  /* in its own */
    char state;    /* R S D T t Z X I; '?': could not be read */
    int cpu;       /* it ran on last */
    int signal;    /* of a core: what it died of, 0: nothing */
    uint64_t tls;  /* of a core: its thread pointer, 0: not known */
    char name[16]; /* the kernel's: up to 15 bytes, any of them */
};

struct pb_native_threads {
    struct pb_native_thread *at;
    size_t n;
};

/* -ESRCH: the process is gone. *ret is written on success only. */
int pb_native_threads_read(pid_t pid, struct pb_native_threads *ret, struct pb_err *err);
void pb_native_threads_done(struct pb_native_threads *t);

/* By tid in our namespace, or in its own; NULL: none. */
struct pb_native_thread *pb_native_threads_find(const struct pb_native_threads *t, pid_t tid);
struct pb_native_thread *pb_native_threads_find_ns(const struct pb_native_threads *t, pid_t ns_tid);

/* "futex", "read", ..; NULL: a number we do not know. */
const char *pb_syscall_name(int number);
