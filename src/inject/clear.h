/* clear: waits until no thread holds a lock that an injection needs. Checked before a thread is borrowed:
 * that thread calls pthread_create, which allocates, and a thread of ours calls dlopen. With a hung allocator
 * or loader both would hang, the first of them a thread of the program. */
#pragma once

#include <stdint.h>

struct pb_err;
struct pb_inject_target;
struct pb_judge;

/* Waits until each thread that sleeps in an allocator or the loader has run again. -ETIMEDOUT: one has not by
 * the deadline, and err names it; -EINTR. Touches nothing. */
int pb_clear_wait(struct pb_judge *j, const struct pb_inject_target *target, uint64_t deadline,
                  struct pb_err *err);
