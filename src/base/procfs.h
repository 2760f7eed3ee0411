/* procfs: reading the text files of /proc/PID. Tools only; no state, any thread.
 *
 * name is what follows /proc/PID/: "maps", "status", "task/17/stat". A pid of 0 stands for the caller. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads the whole file into memory the caller frees; a NUL follows the text. ret_len may be NULL.
 * -ESRCH: the process is gone (a missing file and a read that fails with ESRCH mean that too);
 * -EACCES: not ours to read. */
int pb_proc_slurp(pid_t pid, const char *name, char **ret, size_t *ret_len);

/* Reads what fits into buf, ends it with NUL and returns the length. The same errors. */
int pb_proc_read(pid_t pid, const char *name, char *buf, size_t size);

/* The target of a symbolic link, ended with NUL, cut to size. Returns the length. */
int pb_proc_link(pid_t pid, const char *name, char *buf, size_t size);

/* The text after "key:" and blanks in a status file, or NULL. Points into text; the line's end follows it. */
const char *pb_proc_field(const char *text, const char *key);

/* The same as a number in the given base; 0 where the line is missing. */
uint64_t pb_proc_number(const char *text, const char *key, int base);

/* Whether this line of stat describes a kernel thread of the process (an io_uring worker). Such a thread
 * never runs in user mode and has no stack there; stopping it only delays its work. */
bool pb_proc_is_worker(const char *stat);

/* Whether all threads of the process have exited, and its parent has not reaped it yet. */
bool pb_proc_is_zombie(pid_t pid);

/* A thread through which the process can still be read: pid itself, or another thread when the main thread
 * has ended and the process lives on (the kernel then shows neither memory nor program under pid). */
pid_t pb_proc_living(pid_t pid);

/* Memory of the process in RAM, bytes. -1: it has none (it has ended), or it cannot be read. */
int64_t pb_proc_rss(pid_t pid);
