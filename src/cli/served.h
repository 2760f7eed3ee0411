/* served: a command that a service runs for a tool elsewhere (remote.h): which process it is about where the
 * tool named HOST:PORT alone. */
#pragma once

#include "cli/cli.h"

/* The service passes its own address and target to such a command, in served_at and served_target. */
void pb_served_read(struct pb_call *call);

/* Whether the command is about a process and the tool has named none. */
bool pb_served_must_choose(const struct pb_call *call);

/* The process that the service was started for; else the only one that is probed, or the only Python process
 * where none is. An error that lists them as HOST:PORT/PID where there are several. A command that works
 * without a process (PB_CMD_PROBED) goes on without one: call->which is that error. */
int pb_served_choose(struct pb_call *call, struct pb_err *err);

/* Whether SQL reads tables of a process. */
bool pb_served_needs_process(const char *sql, size_t length);
