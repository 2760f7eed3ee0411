/* transfer: system calls that move data, and that a ptrace stop ends with a part of it moved.
 *
 * A call that has moved nothing is restarted by the kernel. One that has moved something (write on a full
 * pipe, send, a read that waits for a least number of bytes) returns a short count instead, also when no
 * handler runs. Programs without handlers do not expect that: `print` of an unbuffered Python drops the rest.
 * So a thread that is seen in such a call is not stopped (pb_transfer_waits). One that enters it between that
 * look and the stop, or that must be borrowed all the same, finishes the transfer by itself:
 * pb_transfer_finish lets it repeat the call for the rest, by a few instructions of ours (transfer_code.c)
 * that add both counts and continue behind the call. These need no tool: if we die, the thread still gets the
 * whole count. A handler, an error or the end of the data ends the rest early; then the program gets what was
 * moved until then.
 *
 * Everything here is signal-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct pb_waiting;

/* True if a stop may cut the call short that the thread waits in (or end an ioctl, whose effect is not
 * known). */
bool pb_transfer_waits(pid_t pid, pid_t tid, const struct pb_waiting *w);

/* Whether pb_transfer_finish could then give the program its whole count. For a thread that was seen waiting
 * there, without a stop. */
bool pb_transfer_may_finish(pid_t pid, pid_t tid, const struct pb_waiting *w);

/* True for calls that pb_transfer_finish knows. */
bool pb_transfer_is_known(long number);

/* A system call that a stopped thread is leaving. */
struct pb_transfer_call {
    long number;
    uint64_t args[6];
    int64_t result;
    uint64_t sp, pc; /* of the thread: pc is behind the call's instruction */
};

/* For a thread in a ptrace stop: if the call ended with a part of its work done, the thread is made to do the
 * rest when it continues. 1: so it is; 0: there is nothing to finish, or it cannot be finished. The registers
 * are changed last. */
int pb_transfer_finish(pid_t pid, pid_t tid, const struct pb_transfer_call *call);

/* The program's own position while a thread finishes a transfer, for readers of its stack. */
struct pb_transfer_place {
    uint64_t sp, pc;
};
enum {
    PB_TRANSFER_WORDS = 4,
    PB_TRANSFER_CODE = 64,
#if defined(__x86_64__)
    PB_TRANSFER_BEFORE = 2, /* the length of the call's instruction */
#else
    PB_TRANSFER_BEFORE = 4,
#endif
};

/* words: those at the thread's sp. False: it finishes nothing. */
bool pb_transfer_is_state(const uint64_t words[PB_TRANSFER_WORDS]);

/* The same with proof: code: what lies PB_TRANSFER_BEFORE bytes before its pc, where it waits in the call. */
bool pb_transfer_place_of(const uint64_t words[PB_TRANSFER_WORDS], const unsigned char code[PB_TRANSFER_CODE],
                          struct pb_transfer_place *ret);

/* ---- Between transfer.c and transfer_code.c ---- */

enum {
    PB_TRANSFER_PIECES = 256, /* of a vector: a rest of more pieces is not finished */
    PB_TRANSFER_BELOW = 128,  /* what a function may keep below its stack pointer */
};

/* What lies on the thread's own stack while it finishes. The code reads it by the offsets below. */
struct pb_transfer_state {
    uint64_t magic[2];
    uint64_t sp, pc;          /* where the program is */
    uint64_t done;            /* the count so far */
    uint64_t args[6], number; /* the program's own */
};
_Static_assert(sizeof(struct pb_transfer_state) == 96, "a multiple of 16, and the offsets in the code");

/* All of it or nothing. By the thread's own id: the first thread may have ended, and the process's memory,
 * files and mappings are then not shown under its id. */
bool pb_transfer_read(pid_t tid, uint64_t at, void *buf, size_t len);
bool pb_transfer_write(pid_t tid, uint64_t at, const void *buf, size_t len);

/* Where the code is, or can be, in the process, and whether `room` bytes below sp belong to the thread's own
 * stack. tls: of the thread; 0: not known. -ENOSPC, -EFAULT: no place, no room. */
int pb_transfer_find_code(pid_t tid, uint64_t sp, size_t room, uint64_t tls,
                          const struct pb_transfer_call *site, uint64_t *ret_code);

/* Puts the code there and lets the stopped thread run it: it calls `number` with args on the stack `sp`. */
int pb_transfer_run_code(pid_t tid, uint64_t code, const struct pb_transfer_call *site, long number,
                         const uint64_t args[6], uint64_t sp);

/* True: this is our code (for whichever site). */
bool pb_transfer_is_code(const unsigned char code[PB_TRANSFER_CODE]);

/* The address of the stopped thread's thread-local variables; 0: not known. */
uint64_t pb_transfer_tls(pid_t tid);
