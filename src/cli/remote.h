/* remote: runs a command line about a process of another machine by the service there (probing serve). */
#pragma once

#include <stdbool.h>

struct pb_call;
struct pb_err;

/* HOST:PORT or HOST:PORT/PID; http:// may stand before it, as in the address that a service prints. */
bool pb_remote_is(const char *target);

/* Sends the words of this command line, and files that they name, to the service of call->target; prints what
 * comes back, writes the files that come back. Without call->token_file the token is found as docs/service.md
 * says. Returns the exit status there, or negative errno. */
int pb_remote_run(int argc, char **argv, const struct pb_call *call, struct pb_err *err);
