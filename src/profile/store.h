/* store: recordings: samples in the tables of an arena that outlives both processes, and a profile made of
 * them.
 *
 *   python.samples   timestamp, pid, tid, thread, process, stack, samples, until, waiting, gil
 *   python.stacks    timestamp, stack, parent, function, file, line, kind
 *   python.hangs     timestamp, pid, tid, thread, process, depth, function, file, line, locals, seconds,
 *                    verdict
 *
 * A stack is a node: its innermost frame, and the stack below that. Nodes are written again now and then: old
 * rows are overwritten, and a newer sample must find its stack. A recording is a run (control/rundir.h) of
 * the process that records; its description says which process it is of. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "profile/profile.h"

struct pb_err;
struct pb_store;

struct pb_store_options {
    uint64_t bound;    /* bytes; 0: 64 MB */
    const pid_t *pids; /* that are recorded from the beginning on, at least one */
    size_t npids;
    const char *command;
    double rate;
    const char *clock; /* "wall", "CPU", "GIL": what its samples count */
    bool shown;        /* by /flamegraph, at once (pprof) */
};

/* Makes the run directory and the tables. */
int pb_store_new(const struct pb_store_options *options, struct pb_store **ret, struct pb_err *err);
void pb_store_close(struct pb_store *s);
const char *pb_store_path(const struct pb_store *s);
struct pb_arena *pb_store_arena(struct pb_store *s); /* the meter records into it too */

/* Writes the samples of the profile and removes them from it; interned names stay. Call it about once a
 * second. */
int pb_store_flush(struct pb_store *s, struct pb_profile *p);

/* The profile started a new epoch: its numbers now mean other stacks. */
void pb_store_begin_epoch(struct pb_store *s);

/* A frame of a thread that made no progress. */
struct pb_hang_frame {
    pid_t pid, tid;
    const char *thread, *process, *function, *file, *locals, *verdict; /* NULL: none */
    int depth, line;
    double seconds;
};
int pb_store_hang(struct pb_store *s, const struct pb_hang_frame *f);

/* Reads the samples of a recording from since to until (UTC ns) into a profile, by the clocks of the
 * recording's machine. name: its folder, or the pid of the recorded process (then the newest recording).
 * -ENOENT: there is none. */
int pb_store_read(const char *name, int64_t since, int64_t until, struct pb_profile *p, struct pb_err *err);
