/* remote_debug: injection where ptrace is refused, by Python's own remote debugging (PEP 768, 3.14 and
 * later).
 *
 * A path is written into the interpreter's memory and a flag set; the main thread runs that file at its next
 * bytecode. No thread is stopped and no allocator is at risk, but a thread that never returns to bytecode
 * never runs it. The offsets come from the interpreter itself (_Py_DebugOffsets). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_agent_file;
struct pb_err;
struct pb_procinfo;

/* True when the process is a Python 3.14 or later that has not turned it off. Needs the right to read its
 * memory. */
bool pb_remote_debug_offered(pid_t pid);

/* Loads the agent this way and waits until its entry point has returned. */
int pb_remote_debug_load(const struct pb_procinfo *info, const struct pb_agent_file *agent,
                         const char *options, uint64_t deadline, uint64_t *ret_status, struct pb_err *err);
