/* procinfo: the facts about a process in /proc, read once.
 *
 * A snapshot by value: nothing to release. Reading it needs no rights beyond seeing the process; fields that
 * need more (exe, libc, Python) are unknown where the kernel refuses them. Uses maps and elf; used by
 * injection, `list` and `doctor`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;

enum pb_libc {
    PB_LIBC_UNKNOWN, /* its memory map may not be read */
    PB_LIBC_NONE,    /* a static executable: no loader, nothing can be loaded */
    PB_LIBC_GLIBC,
    PB_LIBC_MUSL,
};

struct pb_procinfo {
    pid_t pid;    /* in our pid namespace */
    pid_t ns_pid; /* in its own (the last of NSpid) */
    pid_t ppid;
    pid_t tracer; /* 0: it is not traced */
    uid_t uid, euid;
    gid_t gid;
    pid_t living; /* one of the living threads if the main thread has ended; else pid */
    char state;   /* R S D T t Z X, of that thread: Z only if no thread of the process runs */
    unsigned threads;
    unsigned mappings;   /* 0: may not be read */
    unsigned seccomp;    /* 0 off, 1 strict, 2 filter */
    uint64_t start_time; /* clock ticks after boot: field 22 of stat */
    uint64_t pid_ns;     /* inode; 0: may not be read */
    uint64_t mnt_ns;
    uint64_t caught; /* signals with a handler, bit 0 is signal 1 */
    bool kernel_thread;
    bool dumpable;     /* false: even its owner needs CAP_SYS_PTRACE */
    bool shadow_stack; /* x86 user shadow stacks are on */
    int elf_class;     /* ELFCLASS32, ELFCLASS64; 0: unknown */
    int elf_machine;   /* EM_*; 0: unknown */
    enum pb_libc libc;
    bool python;
    int python_version; /* 0x030b: 3.11; 0: unknown or not Python */
    char comm[16];
    char exe[256]; /* "": unknown; ends in " (deleted)" if the kernel says so */
};

/* -ESRCH: there is no such process. *ret is written on success only. */
int pb_procinfo_read(pid_t pid, struct pb_procinfo *ret, struct pb_err *err);

/* Only the fields that identify its run: pid, living, ns_pid, euid, start_time, pid_ns. A tenth of the
 * cost. */
int pb_procinfo_identify(pid_t pid, struct pb_procinfo *ret);

/* The C library of a mapped file with this name; PB_LIBC_NONE: it is another library. */
enum pb_libc pb_libc_named(const char *base);

/* "glibc", "musl", "static", "unknown". */
const char *pb_libc_name(enum pb_libc libc);
