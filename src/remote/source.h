/* source: a target as its readers see it, wherever it is: memory, mappings, threads, files, registers.
 *
 * What reads a target's data structures (remote/elf, remote/python, remote/native) reads them through this,
 * and so works on every kind: a live process (here), a core file (remote/core.h), a process that only its
 * agent may read (remote/source_agent.h). Caller-owned, and not to be moved while a reader has it; one thread
 * at a time. Whatever comes back may be hostile: the reader bounds it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_capture;
struct pb_err;
struct pb_maps;
struct pb_moment;
struct pb_native_threads;
struct pb_pages;
struct pb_source;

/* One piece of a batch: len bytes at addr into buf. */
struct pb_piece {
    uint64_t addr;
    void *buf;
    size_t len;
};

/* What a kind of source can do. All but read may be NULL: a batch is then read piece by piece, and the rest
 * is asked of /proc, by the pid. */
struct pb_source_ops {
    const char *name;
    /* As many bytes as there are from addr on, up to len. -EFAULT: none; other errors: the source itself is
     * gone or forbidden. */
    ssize_t (*read)(struct pb_source *s, uint64_t addr, void *buf, size_t len);
    ssize_t (*readv)(struct pb_source *s, const struct pb_piece *pieces, size_t n);
    int (*maps)(struct pb_source *s, struct pb_maps *ret, struct pb_err *err);
    int (*threads)(struct pb_source *s, struct pb_native_threads *ret, struct pb_err *err);
    int (*moment)(struct pb_source *s, pid_t tid, struct pb_moment *ret);
    int (*registers)(struct pb_source *s, pid_t tid, struct pb_capture *ret);
    /* How long a thread has run, and what /proc/PID/task/TID/syscall says of it; "" where that is not told.
     */
    int (*look)(struct pb_source *s, pid_t ns_tid, uint64_t *ret_ran_ns, char *ret_call, size_t size);
    /* The file at path, which is mapped at base. inode: of a live process's file; else it means nothing. */
    int (*open_file)(struct pb_source *s, const char *path, uint64_t inode, uint64_t base);
    int (*exe)(struct pb_source *s, char *ret, size_t size);
    void (*close)(struct pb_source *s);
};

struct pb_source {
    const struct pb_source_ops *ops;
    pid_t pid;        /* 0: no live process */
    pid_t main;       /* its first thread */
    int fd;           /* -1: none */
    int tasks;        /* 1 + its folder of threads, kept open; 0: not yet */
    uint16_t machine; /* EM_*; 0: ours */
    bool spin;   /* answers of another process are polled for: a thread of the target is stopped meanwhile */
    void *extra; /* of the kind */
    struct pb_pages *pages; /* kept; NULL: none yet */
    uint64_t round;         /* 0: none are kept now */
};

/* The memory of a live process: process_vm_readv, or /proc/PID/mem where that is forbidden. Needs the right
 * to trace it. -ESRCH: gone; -EPERM, -EACCES: not ours. */
int pb_source_process(pid_t pid, struct pb_source *ret, struct pb_err *err);

/* The same without asking first, for a caller that has a right already; needs no close. */
struct pb_source pb_source_of(pid_t pid);

void pb_source_close(struct pb_source *s);

/* Whole or nothing: -EFAULT where some byte is not there. */
int pb_source_read(struct pb_source *s, uint64_t addr, void *buf, size_t len);

/* As many bytes as there are from addr on, up to len. Returns how many. -EFAULT: none. */
ssize_t pb_source_read_some(struct pb_source *s, uint64_t addr, void *buf, size_t len);

/* A batch in as few calls as there can be. Returns how many pieces, from the first on, are whole; the rest is
 * undefined. Negative: -ESRCH (the process is gone), -EPERM. */
ssize_t pb_source_readv(struct pb_source *s, const struct pb_piece *pieces, size_t n);

/* From here on, up to pb_source_forget, small reads are answered from whole pages, each read once: words that
 * lie near each other cost one call. For what does not change meanwhile (a thread that is held, or was proved
 * asleep), or where one look is as good as the next. round: 0 forgets all pages; what an earlier call
 * returned goes on with those of that time. Does nothing where the source is no live process. */
uint64_t pb_source_keep(struct pb_source *s, uint64_t round);
void pb_source_forget(struct pb_source *s);

/* As pb_maps_read and pb_native_threads_read. */
int pb_source_maps(struct pb_source *s, struct pb_maps *ret, struct pb_err *err);
int pb_source_threads(struct pb_source *s, struct pb_native_threads *ret, struct pb_err *err);

/* Opens the moments of a thread, as pb_moment_open. The source outlives them. */
int pb_source_moment(struct pb_source *s, pid_t tid, struct pb_moment *ret);

/* The path of the program, as the target sees it. */
int pb_source_exe(struct pb_source *s, char *ret, size_t size);
