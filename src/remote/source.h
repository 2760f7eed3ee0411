/* source: a target as its readers see it, wherever it is: memory, mappings, threads, files, registers.
 *
 * The readers of a target's data structures (remote/elf, remote/python, remote/native) use only this
 * interface, and so work on every kind: a live process (here), a core file (remote/core.h), a process that
 * only its agent may read (remote/source_agent.h). Caller-owned, and not to be moved while a reader uses it;
 * one thread at a time. The data may be hostile: the reader bounds it. */
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

/* The operations of a kind of source. All but read may be NULL: a batch is then read piece by piece, and the
 * rest comes from /proc, by the pid. */
struct pb_source_ops {
    const char *name;
    /* Reads as many bytes as there are from addr on, up to len. -EFAULT: none; other errors: the source
     * itself is gone or forbidden. */
    ssize_t (*read)(struct pb_source *s, uint64_t addr, void *buf, size_t len);
    ssize_t (*readv)(struct pb_source *s, const struct pb_piece *pieces, size_t n);
    int (*maps)(struct pb_source *s, struct pb_maps *ret, struct pb_err *err);
    int (*threads)(struct pb_source *s, struct pb_native_threads *ret, struct pb_err *err);
    int (*moment)(struct pb_source *s, pid_t tid, struct pb_moment *ret);
    int (*registers)(struct pb_source *s, pid_t tid, struct pb_capture *ret);
    /* How long a thread has run, and the text of /proc/PID/task/TID/syscall; "" if not known. */
    int (*look)(struct pb_source *s, pid_t ns_tid, uint64_t *ret_ran_ns, char *ret_call, size_t size);
    /* Opens the file at path, which is mapped at base. inode: of a live process's file; otherwise not
     * used. */
    int (*open_file)(struct pb_source *s, const char *path, uint64_t inode, uint64_t base);
    int (*exe)(struct pb_source *s, char *ret, size_t size);
    void (*close)(struct pb_source *s);
};

struct pb_source {
    const struct pb_source_ops *ops;
    pid_t pid;        /* 0: no live process */
    pid_t main;       /* its first thread */
    int fd;           /* -1: none */
    int tasks;        /* 1 + the descriptor of its folder of threads, held open; 0: not yet */
    uint16_t machine; /* EM_*; 0: ours */
    bool spin;   /* poll for the answers of another process: a thread of the target is stopped meanwhile */
    void *extra; /* of the kind */
    struct pb_pages *pages; /* kept; NULL: none yet */
    uint64_t round;         /* 0: pages are not kept now */
};

/* The memory of a live process: process_vm_readv, or /proc/PID/mem where that is forbidden. Needs the right
 * to trace it. -ESRCH: gone; -EPERM, -EACCES: not allowed. */
int pb_source_process(pid_t pid, struct pb_source *ret, struct pb_err *err);

/* The same without a check, for a caller that already has the right; needs no close. */
struct pb_source pb_source_of(pid_t pid);

void pb_source_close(struct pb_source *s);

/* Whole or nothing: -EFAULT if some byte is not mapped. */
int pb_source_read(struct pb_source *s, uint64_t addr, void *buf, size_t len);

/* As many bytes as there are from addr on, up to len. Returns how many. -EFAULT: none. */
ssize_t pb_source_read_some(struct pb_source *s, uint64_t addr, void *buf, size_t len);

/* Reads a batch in as few calls as possible. Returns how many pieces, from the first on, are whole; the rest
 * is undefined. Negative: -ESRCH (the process is gone), -EPERM. */
ssize_t pb_source_readv(struct pb_source *s, const struct pb_piece *pieces, size_t n);

/* From here on, up to pb_source_forget, small reads are answered from whole pages, each read once: words
 * close to each other cost one call. For memory that does not change meanwhile (a thread that is held, or was
 * proved asleep), or where an older value is as good. round: 0 forgets all pages; the result of an earlier
 * call continues with those pages. Does nothing unless the source is a live process. */
uint64_t pb_source_keep(struct pb_source *s, uint64_t round);
void pb_source_forget(struct pb_source *s);

/* As pb_maps_read and pb_native_threads_read. */
int pb_source_maps(struct pb_source *s, struct pb_maps *ret, struct pb_err *err);
int pb_source_threads(struct pb_source *s, struct pb_native_threads *ret, struct pb_err *err);

/* Opens the moment of a thread, as pb_moment_open. The source must outlive it. */
int pb_source_moment(struct pb_source *s, pid_t tid, struct pb_moment *ret);

/* The path of the program, as the target sees it. */
int pb_source_exe(struct pb_source *s, char *ret, size_t size);
