/* remote: runs a command line about a process of another machine by the service there (probing serve). */
#pragma once

#include <stdbool.h>

struct pb_err;

/* HOST:PORT or HOST:PORT/PID; http:// may stand before it, as in the address that a service prints. */
bool pb_remote_is(const char *target);

/* token_file: where the service's token is; NULL: found as docs/service.md says.
 * Sends the words of this command line, and files that they name, to the service; prints what comes back,
 * writes the files that come back. Returns the exit status there, or negative errno. */
int pb_remote_run(int argc, char **argv, const char *target, const char *token_file, struct pb_err *err);
