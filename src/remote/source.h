/* source: the memory of a target, wherever it is. A live process is the only kind there is yet.
 *
 * What reads a target's data structures (remote/python, remote/native) reads them through this, and so works
 * on all of them. Caller-owned; one thread at a time. Whatever comes back may be hostile: the reader bounds
 * it. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_source;

/* One piece of a batch: len bytes at addr into buf. */
struct pb_piece {
    uint64_t addr;
    void *buf;
    size_t len;
};

/* What a kind of source can do. readv fills pieces in order and returns how many are whole, up to the first
 * that is not; negative errno only where it got nothing because the source itself is gone or forbidden. */
struct pb_source_ops {
    const char *name;
    ssize_t (*readv)(struct pb_source *s, const struct pb_piece *pieces, size_t n);
    void (*close)(struct pb_source *s);
};

struct pb_source {
    const struct pb_source_ops *ops;
    pid_t pid;   /* 0: no live process */
    int fd;      /* -1: none */
    void *extra; /* of the kind */
};

/* The memory of a live process: process_vm_readv, or /proc/PID/mem where that is forbidden. Needs the right
 * to trace it. -ESRCH: gone; -EPERM, -EACCES: not ours. */
int pb_source_process(pid_t pid, struct pb_source *ret, struct pb_err *err);

void pb_source_close(struct pb_source *s);

/* Whole or nothing: -EFAULT where some byte is not there. */
int pb_source_read(struct pb_source *s, uint64_t addr, void *buf, size_t len);

/* A batch in as few calls as there can be. Returns how many pieces, from the first on, are whole; the rest is
 * undefined. Negative: -ESRCH (the process is gone), -EPERM. */
ssize_t pb_source_readv(struct pb_source *s, const struct pb_piece *pieces, size_t n);
