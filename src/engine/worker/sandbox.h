/* sandbox: removes every right that the worker does not need.
 *
 * After pb_sandbox_enter the process and its threads can compute, use the descriptors they have and those
 * sent to them, and nothing else: no file can be opened, no socket created, no program run, no process
 * traced, read or signalled. With an archive, files below its folder can be opened for reading. Processes
 * that write Parquet files get these as descriptors too. The kernel enforces this, whatever code runs
 * here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_err;

/* Limits the address space; call it before anything large is loaded. */
int pb_sandbox_bound_memory(uint64_t bytes, struct pb_err *err);

/* Cannot be undone. Without Landlock (before Linux 5.13) seccomp alone is used, and an archive is refused
 * (-ENOSYS). archive: the folder that may be read; NULL: none. */
int pb_sandbox_enter(const char *archive, struct pb_err *err);

/* The same for a process that writes to its descriptors: no file can be opened, not even for reading. */
int pb_sandbox_enter_writer(struct pb_err *err);

/* sandbox_files.c: the name under which DuckDB opens descriptor fd, after pb_sandbox_enter_writer. */
#define PB_SANDBOX_FILE "/descriptor/"
void pb_sandbox_lend_files(void);
