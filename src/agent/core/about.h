/* about: the description of a run: its program, versions, and part of which job. Lines of "name=value"
 * (newlines and backslashes in a value escaped), written once when the agent starts. */
#pragma once

#include <stddef.h>

#define PB_ABOUT_SIZE 8192

/* "PIDNS-PID-START": the pid namespace's inode, the pid in it, and the start time in clock ticks after boot.
 */
void pb_about_run_name(char *ret, size_t size);

/* redact: the words of probing.redact, for the command line. */
void pb_about_write(char *ret, size_t size, const char *host_pid, const char *redact);
