/* tables: the tables of a live process, opened from outside: its memory, or else the copy in its run
 * directory.
 *
 * The agent hands out a read-only descriptor of the memory in which the rows are written, so a reader sees
 * each row at once, whatever the interpreter does. The target controls that descriptor: it is checked like a
 * file before it is read. If the process does not answer soon (it is stopped, or too busy) the copy is read,
 * which is a fraction of a second old. */
#pragma once

struct pb_err;
struct pb_procinfo;
struct pb_run_info;

/* Returns a read-only descriptor that the caller closes, or negative errno. `note` (256 bytes) receives a
 * remark for a person, or "". */
int pb_tables_open(const struct pb_procinfo *process, const struct pb_run_info *run, char *note,
                   struct pb_err *err);

/* Takes over a descriptor from the process and returns one that is safe to read: of a regular file of the
 * process's user that cannot be truncated (sealed), read-only, and an arena that this process began. -EPERM
 * or the reader's error; the descriptor is closed then. */
int pb_tables_check(int given, const struct pb_procinfo *process, struct pb_err *err);
