/* sandbox: what takes every right from the worker that it does not need.
 *
 * After pb_sandbox_enter the process and its threads can compute, use the descriptors they have and those
 * that are sent to them, and nothing else: no file can be opened, no socket made, no program run, no process
 * traced, read or signalled. With an archive the files below its folder can be opened to be read, and no
 * others. Processes that write Parquet files get those as descriptors, too. The kernel holds this, whatever
 * code runs in here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pb_err;

/* Bounds the address space; call it before anything large is loaded. */
int pb_sandbox_bound_memory(uint64_t bytes, struct pb_err *err);

/* From here on there is no way back. Where the kernel has no Landlock (before 5.13) seccomp alone holds it,
 * and there is no archive (-ENOSYS). archive: the folder that may be read; NULL: none. */
int pb_sandbox_enter(const char *archive, struct pb_err *err);

/* The same for a process that writes to the descriptors it has: no file can be opened, also not to be read.
 */
int pb_sandbox_enter_writer(struct pb_err *err);

/* sandbox_files.c: the name by which DuckDB opens descriptor fd; only after pb_sandbox_enter_writer does such
 * a name stand for anything. */
#define PB_SANDBOX_FILE "/descriptor/"
void pb_sandbox_lend_files(void);
