/* core: a dead process, read from its core file: a source (remote/source.h) for the same readers.
 *
 * Cores of the kernel and of gdb's gcore, 64-bit, of x86-64 and aarch64. Read by pread, only as needed: a
 * core of 100 GB costs no more than a small one. Memory that was not dumped because a file has it (code,
 * constants) is read from that file, opened below `root`, if it is still the same: by its build id if that
 * was dumped, else by its size. Everything in the core is hostile: every count, size and path. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_source;

enum { PB_CORE_NOTES = 8 };

struct pb_core_info {
    uid_t
        uid; /* whose files it may name: the owner of the core, if that is not root, or else the user in it */
    gid_t gid;
    pid_t pid; /* in its own namespace, or in that of the gdb that wrote it */
    char name[17];
    char command[81];               /* as much of it as the kernel keeps */
    int signal;                     /* that it died of; 0: none, the process was alive */
    pid_t died_in;                  /* the thread; 0: none */
    int code;                       /* SI_*, SEGV_*, ... */
    uint64_t address;               /* that faulted, for the signals that have one */
    pid_t sender;                   /* of a signal that was sent; 0: none */
    char notes[PB_CORE_NOTES][256]; /* for the reader: missing files, a core cut short */
    unsigned nnotes;
};

/* root: the folder that holds the process's files, NULL: "/". -ENOEXEC: not a core file, and why; -ENOTSUP:
 * of an unknown machine. */
int pb_core_open(const char *path, const char *root, struct pb_source *ret, struct pb_err *err);

/* The same for an open file, which is taken over; name: for messages. */
int pb_core_open_fd(int fd, const char *name, const char *root, struct pb_source *ret, struct pb_err *err);

/* The facts of a core; NULL: the source is not a core. Lives as long as the source; notes are added while it
 * is read. */
const struct pb_core_info *pb_core_info(const struct pb_source *s);
