/* load: the agent brought in by ptrace, from the choice of a thread to the answer of the entry point.
 *
 *   borrow   load.c     one thread is held: our memory is mapped, the stub written and run; it goes on
 *   follow   follow.c   the threads that the stub started are watched: memfd filled, answer read
 *
 * Private to inject/. */
#pragma once

#include "inject/hold.h"
#include "inject/inject.h"
#include "inject/place.h"
#include "inject/stub.h"
#include "inject/target.h"

struct pb_err;

struct pb_load {
    const struct pb_inject_request *req;
    uint64_t deadline;
    struct pb_inject_target target;
    struct pb_agent_file agent;
    struct pb_place place;
    struct pb_hold_stats stats;
    uint64_t memory; /* where our mapping is to be, in the target */
    uint64_t entry;  /* of an agent that is there already; 0: none */
    bool mapped, direct;
    bool memfd; /* one is to be made */
    uint32_t descriptors;
    int failure; /* of pb_load_provide: negative errno; err has the sentence */
    int crashed; /* the signal that a thread of ours died of; 0: none did */
    struct pb_stub_answer answer;
    struct pb_hold hold;
};

/* Writes a member of the answer in the target, at its offset. */
int pb_load_tell(const struct pb_load *l, size_t offset, const void *value, size_t len);

/* The tid in our namespace of a thread of the target; 0: it is gone. */
pid_t pb_load_tid(const struct pb_load *l, pid_t ns_tid);

/* Whether a thread waits for a lock now. Past the deadline a lock is not waited for: its holder may hang. */
bool pb_load_waits_for_lock(const struct pb_load *l, pid_t tid);

/* Fills the memfd that thread tid (of our namespace) made, or writes a file, and lets the target continue. On
 * failure orders the target to give up. */
int pb_load_provide(struct pb_load *l, pid_t tid, struct pb_err *err);

/* The error for an answer that cannot be read, because our memory is gone: r is that of pb_mem_read. -ETIME:
 * the threads in the target ended because this tool was late; nothing is left, so the caller may try
 * again. */
int pb_load_lost(const struct pb_load *l, int r, struct pb_err *err);

/* Waits until l->answer is complete. -ETIME: see above. -EINTR, -ETIMEDOUT: the threads go on, and end by
 * themselves. */
int pb_load_follow(struct pb_load *l, struct pb_err *err);

/* The whole injection. Frees nothing: pb_load_free does. */
int pb_load_run(struct pb_load *l, struct pb_inject_result *ret, struct pb_err *err);
void pb_load_free(struct pb_load **l);
