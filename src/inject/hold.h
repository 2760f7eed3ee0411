/* hold: a borrowed thread of the target: found at a safe point, used for system calls and one run of the
 * stub, and given back as it was.
 *
 * From begin to end the thread is on a signal frame of its own registers (arch.h): if we die, whatever it
 * runs ends in rt_sigreturn on that frame. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "inject/arch.h"
#include "inject/thread.h"

struct pb_err;
struct pb_judge;
struct pb_inject_target;

struct pb_hold_stats {
    uint64_t total_ns, longest_ns;
    unsigned unsafe_looks, unsafe_rounds;
    unsigned stops; /* how often the borrowed thread stopped and waited for us */
    bool process_stopped;
};

struct pb_hold {
    struct pb_thread thread;
    const struct pb_inject_target *target;
    struct pb_hold_stats *stats;
    struct pb_judge *judge; /* while the thread is sought */
    struct pb_arch_state saved;
    struct pb_arch_undo undo;
    uint64_t frame_addr, frame_sp, undo_sp;
    size_t frame_len;
    bool active;
    unsigned char frame[PB_ARCH_FRAME_MAX], under[PB_ARCH_FRAME_MAX]; /* under: what it overwrites */
};

/* Zeroed, for free(): the registers need more alignment than malloc gives. NULL: out of memory. */
struct pb_hold *pb_hold_alloc(void);

/* Finds a thread, stops it and begins the hold. memory: where our mapping will be, which the thread itself
 * unmaps if we die between the mapping and the stub. -ETIMEDOUT: no thread came to a safe point by the
 * deadline; -EAGAIN: the process is in a job-control stop with a thread inside the allocator; -ESTALE: the
 * process runs another program than target describes. */
int pb_hold_begin(struct pb_hold *h, const struct pb_inject_target *target, uint64_t memory, size_t size,
                  uint64_t deadline, struct pb_hold_stats *stats, struct pb_err *err);

/* The signal with which the target's C library makes every thread run a function (setuid), as a bit of a
 * mask. */
uint64_t pb_hold_signal_of_libc(const struct pb_inject_target *target);

/* One system call in the held thread; *ret is its value or a negative errno of the target. */
int pb_hold_syscall(struct pb_hold *h, long nr, const uint64_t args[6], int64_t *ret);

/* Lets the thread run the stub and waits for its end: 0, 1 (it has a request: call again with start false),
 * or the result of pb_thread_wait (-ETIMEDOUT, -EINTR: it runs on, call again with start false), -ESRCH,
 * -ESTALE (exec), or -EFAULT with the signal that it crashed with, which is not delivered. */
int pb_hold_run(struct pb_hold *h, bool start, uint64_t code, uint64_t stack, uint64_t stub,
                uint64_t deadline, int *ret_signal);

/* Restores what is not yet restored and releases the thread. */
void pb_hold_end(struct pb_hold *h);

/* Releases a thread that runs the stub: it restores itself from its frame. */
void pb_hold_abandon(struct pb_hold *h);
