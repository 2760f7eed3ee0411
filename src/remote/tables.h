/* tables: the tables of a live process, opened from outside: its memory, or else the copy in its run
 * directory.
 *
 * The agent hands out a read-only descriptor of the memory in which the rows are written, so a reader sees
 * each row at once, whatever the interpreter does. What comes is in the hands of the target: it is checked as
 * a file would be before anybody reads it. A process that does not answer soon (it is stopped, or busy beyond
 * measure) is read from the copy, which is a fraction of a second old. */
#pragma once

struct pb_err;
struct pb_procinfo;
struct pb_run_info;

/* Returns a read-only descriptor that the caller closes, or negative errno. `note` (256 bytes) receives what
 * a person should know of them, or "". */
int pb_tables_open(const struct pb_procinfo *process, const struct pb_run_info *run, char *note,
                   struct pb_err *err);

/* Takes over a descriptor that the process gave, or that was fetched from it, and returns one that is good to
 * read: of a regular file of the process's user that cannot be truncated (sealed), read-only, and an arena
 * that this process began. -EPERM or what the reader says; it is closed then. */
int pb_tables_check(int given, const struct pb_procinfo *process, struct pb_err *err);
