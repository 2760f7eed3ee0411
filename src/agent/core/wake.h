/* wake: lets any thread of the process wake the resident thread.
 *
 * The resident thread waits in poll, for descriptors that only our own threads have (fds.h). Threads of the
 * program (jobs, appends) therefore raise a word in memory; a thread named probing-wake waits for that and
 * writes into a pipe that the resident thread polls. */
#pragma once

#include <stdint.h>

/* From any thread, with any lock held, in a signal handler, before start and after stop. */
void pb_wake(void);

/* The word itself: raising it with a FUTEX_WAKE is the same as pb_wake (for the arena, which must not depend
 * on the agent). */
uint32_t *pb_wake_word(void);

/* For the resident thread. The descriptor is readable after a pb_wake, until drained. -errno: no pipe or no
 * thread. stop waits until the thread does not use the pipe any more. */
int pb_wake_start(void);
int pb_wake_fd(void);
void pb_wake_drain(void);
void pb_wake_stop(void);
