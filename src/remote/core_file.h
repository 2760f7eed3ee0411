/* core_file: the contents of struct pb_core. Private to core.c, core_notes.c and core_files.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "remote/core.h"
#include "remote/native/unwind.h"

/* A PT_LOAD: size bytes of memory at start. The core has the first `dumped` of them at offset; a complete
 * core has `meant`. */
struct pb_core_segment {
    uint64_t start, size, dumped, meant, offset;
    unsigned prot;
};

/* An entry of NT_FILE. */
struct pb_core_map {
    uint64_t start, end, offset;
    uint32_t file; /* index in files */
};

enum pb_core_file_state { PB_CORE_FILE_NEW, PB_CORE_FILE_FITS, PB_CORE_FILE_REFUSED };

struct pb_core_file {
    const char *path; /* in names */
    uint64_t base;    /* where its first byte is mapped; 0: nowhere */
    uint64_t mapped;  /* it reached at least so far */
    enum pb_core_file_state state;
    int fd; /* -1: closed */
};

struct pb_core_thread {
    pid_t tid;
    uint64_t reg[PB_NATIVE_REGS]; /* by DWARF numbers */
    uint64_t tls;                 /* thread pointer; 0: not known */
    int syscall;                  /* -1: in none */
    int perhaps; /* the call it may be in, if its pc is on a system call instruction; -1: none */
    uint64_t args[6];
};

struct pb_core {
    int fd, root_fd;
    char *path; /* for sentences */
    uint64_t size;
    int64_t taken; /* when it was last written */
    uint16_t machine;
    struct pb_core_info info;
    struct pb_core_segment *segments; /* sorted, apart */
    size_t nsegments;
    struct pb_core_map *maps; /* sorted, apart */
    size_t nmaps;
    struct pb_core_file *files; /* each path once */
    size_t nfiles, nopen, evict;
    char *names;
    size_t names_len;
    struct pb_core_thread *threads; /* by tid */
    size_t nthreads;
    unsigned seen;       /* notes, of any kind */
    uint64_t phdr, vdso; /* from the auxiliary vector; 0: not there */
    uint64_t main_sp;    /* stack pointer of the main thread */
};

__attribute__((format(printf, 2, 3))) void pb_core_note(struct pb_core *c, const char *fmt, ...);

/* core_notes.c: reads the notes at offset, size bytes of the file. Invalid notes are skipped. */
int pb_core_read_notes(struct pb_core *c, uint64_t offset, uint64_t size);
/* Sorts what was read, and makes one file of equal paths of NT_FILE. */
int pb_core_order_notes(struct pb_core *c);

/* core_files.c: reads memory from the file mapped there. -EFAULT: there is no such file, or it has
 * changed. */
ssize_t pb_core_files_read(struct pb_core *c, uint64_t addr, void *buf, size_t len);
/* Opens the file that is mapped at addr, for the caller. */
int pb_core_files_open(struct pb_core *c, uint64_t addr);
void pb_core_files_close(struct pb_core *c);
const struct pb_core_map *pb_core_map_at(const struct pb_core *c, uint64_t addr);

/* core.c: reads only memory that is in the core itself. */
ssize_t pb_core_dumped(struct pb_core *c, uint64_t addr, void *buf, size_t len);
