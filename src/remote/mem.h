/* mem: bytes of another process, read and written through the kernel.
 *
 * Needs the right to trace the process, not an attached tracer. Whole or nothing: a short copy is -EFAULT. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* -ESRCH: gone; -EPERM: not allowed; -EFAULT: some byte of it is not mapped. */
int pb_mem_read(pid_t pid, uint64_t addr, void *buf, size_t len);
int pb_mem_write(pid_t pid, uint64_t addr, const void *buf, size_t len);

/* As many bytes as are mapped from addr on, up to len. Returns how many. */
ssize_t pb_mem_read_some(pid_t pid, uint64_t addr, void *buf, size_t len);
