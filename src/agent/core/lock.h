/* lock: the agent's locks, each with a rank, so that they are always taken in one order.
 *
 * A thread that holds a lock takes only locks of higher rank; debug builds abort otherwise. None of them is
 * held during file or socket I/O, a call of the loader or another library, or anything that may wait for the
 * GIL: waiting for one takes microseconds. fork takes none: its child resets them all. docs/architecture.md
 * has the table. */
#pragma once

#include <pthread.h>

enum pb_lock_rank {
    PB_LOCK_JOBS,     /* job.c: the list of jobs and what is in them */
    PB_LOCK_CHANNELS, /* channel.c: the list of channels and what is in them */
    PB_LOCK_SPAWN,    /* spawn.c: the queue of threads to start */
    PB_LOCK_SPANS,    /* span.c: references between spans, where Python has no GIL */
    PB_LOCKS,
};

void pb_lock(enum pb_lock_rank lock);
void pb_unlock(enum pb_lock_rank lock);

/* Waits for the condition; the caller holds this lock and no other. */
void pb_lock_await(enum pb_lock_rank lock, pthread_cond_t *condition);

/* In a forked child: resets all locks, whose holders do not exist there. */
void pb_locks_forget(void);
