/* source_agent: a live process read through its agent, where we may not read it ourselves.
 *
 * In a pod without the right to trace, or where a process forbids it, its agent (if there is one) reads
 * memory and mappings for us, over its socket, and tells by a thread's clock whether it ran, so that a stack
 * is as certainly of one moment as elsewhere. A running thread cannot be stopped this way; it can be kept
 * from its CPU while the agent answers on another one (the pinned way of remote/moment.h). */
#pragma once

#include <sys/types.h>

struct pb_err;
struct pb_procinfo;
struct pb_source;

/* By the first way that is allowed: process_vm_readv, /proc/PID/mem, the agent. */
int pb_source_open(pid_t pid, struct pb_source *ret, struct pb_err *err);
