/* gil: which thread holds Python's global lock, asked from a thread that does not.
 *
 * For the sentence a person reads when code could not run: it names the culprit. Never waits, never takes a
 * lock, and reads what may vanish under it through the kernel, so that a stale pointer is an error and not a
 * crash. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_python;

/* The holder's thread id, 0 when nobody holds it, -ENOSYS when this version's layout is not known. */
pid_t pb_gil_holder(const struct pb_python *py);

/* Writes "thread 4711 (main thread)" or "thread 4711 (its name)". */
void pb_gil_describe(pid_t tid, char *ret, size_t size);

/* A sentence on why the GIL could not be had within that time. Asks Python and /proc. */
void pb_gil_say_why(uint64_t timeout_ms, char *ret, size_t size);
