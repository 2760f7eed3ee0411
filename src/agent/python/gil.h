/* gil: which thread holds Python's global lock, found from a thread that does not.
 *
 * For the message when code could not run: it names the holder. Never waits, never takes a lock, and reads
 * memory that may vanish through the kernel, so that a stale pointer is an error and not a crash. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_python;

/* The holder's thread id, 0: not held, -ENOSYS: the layout of this version is not known. */
pid_t pb_gil_holder(const struct pb_python *py);

/* A sentence that explains why the GIL was not available within that time. Uses Python and /proc. */
void pb_gil_say_why(uint64_t timeout_ms, char *ret, size_t size);
