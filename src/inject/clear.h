/* clear: no thread keeps a lock that an injection needs. Looked at before a thread is borrowed: the thread
 * calls pthread_create, which allocates, and a thread of ours calls dlopen. In a process whose allocator or
 * loader hangs both would hang too, the first of them a thread of the program's. */
#pragma once

#include <stdint.h>

struct pb_err;
struct pb_inject_target;
struct pb_judge;

/* Threads that sleep in an allocator or the loader are waited for until each has run again. -ETIMEDOUT: one
 * has not by the deadline, and err names it; -EINTR. Touches nothing. */
int pb_clear_wait(struct pb_judge *j, const struct pb_inject_target *target, uint64_t deadline,
                  struct pb_err *err);
