/* unwind: native stacks of another process, from copies of registers and stack.
 *
 * Three steps, so that a thread is held for the first only (tens of microseconds) and a sampler pays for the
 * last only once per address:
 *   capture    copies the registers and a bounded part of the stack of one thread
 *   unwind     the copy into program counters, by the DWARF call frame information of the mapped files
 *   describe   a program counter by module, function, file and line, and the calls inlined there
 *
 * struct pb_native holds one process's mappings, unwind tables, symbols and names. It serves any number of
 * captures, notices dlopen by itself and keeps to its memory limit. The target and its files are hostile: all
 * work is bounded. One struct is used by one thread at a time; the thread that captures is the tracer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_err;
struct pb_native;
struct pb_source;

struct pb_native_options {
    size_t stack_max;  /* bytes of stack copied at most; 0: 16 MiB */
    size_t memory_max; /* of tables, symbols and names kept; 0: 256 MiB */
    bool no_lines;     /* leave out file, line and inlined calls */
};

/* options may be NULL; the source must outlive it. -ESRCH: gone; -EACCES: not allowed; -ENOTSUP: another
 * processor (32-bit). */
int pb_native_new(struct pb_source *source, const struct pb_native_options *options, struct pb_native **ret,
                  struct pb_err *err);
void pb_native_free(struct pb_native *n);

/* Registers by their DWARF numbers: 17 on x86-64, 33 on aarch64; a bit of known for each. */
enum { PB_NATIVE_REGS = 33 };

enum { PB_CAPTURE_PARTS = 2 };

struct pb_capture {
    pid_t tid;
    uint64_t reg[PB_NATIVE_REGS];
    uint64_t known;
    uint64_t pc, sp;
    struct pb_capture_part {
        uint64_t addr;
        unsigned char *data; /* kept from capture to capture */
        size_t len, room;
    } part[PB_CAPTURE_PARTS]; /* its present stack, and the one it came from (signal stack, coroutine) */
    bool cut;                 /* the stack is longer than the copy */
    bool no_guesses;          /* set by the caller: where the tables end the stack ends, as truncated */
    uint64_t held_ns;         /* how long the thread was held; 0: not by us */
    uint64_t wanted;          /* missed by the unwinding: the next capture of the same thread copies it too */
};

/* A capture starts as {0}; it may be reused, also for another process. */
void pb_capture_done(struct pb_capture *c);

/* For a thread that the caller has in a ptrace stop, or of a core file: belongs to the same moment as the
 * caller's other reads. About 10 us and 0.1 us a KiB of stack. */
int pb_native_copy(struct pb_native *n, pid_t tid, struct pb_capture *c);

/* Copies only the stack of a thread that the caller knows not to run (PB_WAY_ASLEEP of remote/moment.h) and
 * whose pc and sp it knows. Otherwise as pb_native_peek. */
int pb_native_copy_asleep(struct pb_native *n, pid_t tid, uint64_t pc, uint64_t sp, struct pb_capture *c);

/* Without a stop: for a thread that waits in the kernel and does not run meanwhile. Callee-saved registers
 * are not known, so the unwinding may have to guess (and marks it). -EBUSY: it runs. */
int pb_native_peek(struct pb_native *n, pid_t tid, struct pb_capture *c);

/* Flags of a frame and, or'ed together, of a stack. */
enum pb_native_flags {
    PB_NATIVE_EXACT = 1 << 0,     /* pc is where it stands (innermost, or interrupted by a signal), not a
                                     return address */
    PB_NATIVE_SIGNAL = 1 << 1,    /* the frame that the kernel made for a signal handler */
    PB_NATIVE_BY_FP = 1 << 2,     /* no unwind table: found by the chain of frame pointers */
    PB_NATIVE_BY_SCAN = 1 << 3,   /* found by looking for a return address on the stack: may be wrong */
    PB_NATIVE_TRUNCATED = 1 << 4, /* of a stack: it goes on beyond what could be unwound */
    PB_NATIVE_EVAL = 1 << 5,      /* described: CPython's evaluation loop, where Python frames belong */
    PB_NATIVE_JIT = 1 << 6,       /* described: named by the process's perf map */
    PB_NATIVE_INLINED = 1 << 7,   /* described: no call of its own, inlined into the frame after it */
    PB_NATIVE_GLUE = 1 << 8,      /* described: CPython's plumbing between a call and the loop */
};

struct pb_native_pc {
    uint64_t pc;
    unsigned flags;
};

/* Innermost first, at most max. A stack that was left for another one (a handler on a signal stack) is
 * truncated there the first time and sets c->wanted: capture again. Returns how many (never 0); *ret_flags:
 * those of all frames together, and whether the stack is truncated. Allocates nothing once its tables are
 * warm; 0.2-0.5 us a frame then. */
size_t pb_native_unwind(struct pb_native *n, struct pb_capture *c, struct pb_native_pc *pcs, size_t max,
                        unsigned *ret_flags);

/* One frame for a person. All text lives as long as the pb_native; NULL where it is not known. */
struct pb_native_frame {
    uint64_t pc;
    const char *module;   /* path as the target's mappings have it; "[vdso]"; NULL: anonymous memory */
    const char *build_id; /* hexadecimal */
    uint64_t address;     /* of pc in the module's file (its own virtual address), as for addr2line */
    const char *function; /* demangled */
    uint64_t offset;      /* from the function's start */
    const char *file;
    unsigned line; /* 0: not known */
    unsigned flags;
};

enum { PB_NATIVE_INLINE_MAX = 16 };

/* The frame of a program counter, preceded by the calls inlined there, innermost first. Returns how many were
 * written, 1 to max. Cached. Call it when an address is first seen: later its library may be gone. */
size_t pb_native_describe(struct pb_native *n, const struct pb_native_pc *pc, struct pb_native_frame *ret,
                          size_t max);

/* Optional, before describing many: finds the symbols of all of them in one pass over each table. Saves much
 * for a library with hundreds of thousands of symbols. */
void pb_native_prepare(struct pb_native *n, const struct pb_native_pc *pcs, size_t count);
