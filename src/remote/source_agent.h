/* source_agent: a live process read through the agent in it, where we may not read it ourselves.
 *
 * In a pod without the right to trace, or where a process forbids it, the agent (if it is there already)
 * reads memory and mappings on our behalf, over its socket, and tells whether a thread ran: by its clock, so
 * that a stack is as surely of one moment as elsewhere. A thread that runs cannot be stopped this way; it can
 * be kept from its CPU while the agent answers from another one (the pinned way of remote/moment.h). */
#pragma once

#include <sys/types.h>

struct pb_err;
struct pb_procinfo;
struct pb_source;

/* -ENOENT: it has none that we can reach. */
int pb_source_agent(const struct pb_procinfo *process, struct pb_source *ret, struct pb_err *err);

/* By the first way that is allowed: process_vm_readv, /proc/PID/mem, the agent. */
int pb_source_open(pid_t pid, struct pb_source *ret, struct pb_err *err);
