/* core: a process that is no more, from its core file: a source (remote/source.h) for the same readers.
 *
 * Cores of the kernel and of gdb's gcore, 64-bit, of x86-64 and aarch64. Read by pread, only where a reader
 * asks: a core of 100 GB costs no more than a small one. What was not dumped because it is in a file (code,
 * constants) comes from that file, opened below `root`, where it still is the same: its build id is compared
 * with the dumped one, else its size is. Everything in the core is hostile: every count, size and path. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_source;

enum { PB_CORE_NOTES = 8 };

struct pb_core_info {
    pid_t pid; /* in its own namespace, or in that of the gdb that wrote it */
    char name[17];
    char command[81];               /* as much of it as the kernel keeps */
    int signal;                     /* it died of; 0: none, the core was taken of a live process */
    pid_t died_in;                  /* the thread; 0: none */
    int code;                       /* SI_*, SEGV_*, ... */
    uint64_t address;               /* that faulted, for the signals that have one */
    pid_t sender;                   /* of a signal that was sent; 0: none */
    char notes[PB_CORE_NOTES][256]; /* what a reader should know: missing files, a core cut short */
    unsigned nnotes;
};

/* root: the folder in which the process's files are, NULL: "/". -ENOEXEC: no core file, and why; -ENOTSUP: of
 * a machine that is not known. */
int pb_core_open(const char *path, const char *root, struct pb_source *ret, struct pb_err *err);

/* The same of an open file, which is taken over; name: for sentences. */
int pb_core_open_fd(int fd, const char *name, const char *root, struct pb_source *ret, struct pb_err *err);

/* Of a source that is a core; NULL: it is none. Lives as long as the source; notes are added while it is
 * read. */
const struct pb_core_info *pb_core_info(const struct pb_source *s);
