/* crash: keeps the scene of fatal signals of the program, while somebody wants it (`probing catch`).
 *
 * Handlers for SIGSEGV, SIGBUS, SIGFPE and SIGABRT are set only while a keeper is connected: a process of
 * ours outside, which reads the stacks of the process while the handler waits, at most PB_CRASH_WAIT_MS. Then
 * the handler restores the former one and makes the signal happen again: a fault by returning to the
 * instruction, a signal that was sent by sending it again with the same information. So the program's own
 * handler, or the default, sees the same registers, stack and mask as without us.
 * crash.c has the handler, crash_keep.c the exchange with the keeper, crash_python.c the functions for the
 * Python part. */
#pragma once

#include "agent/core/server.h"
#include "table/arena.h"

#include <stdint.h>

#define PB_CRASH_WAIT_MS 2000
/* A process that still runs this long after its scene was recorded handles that signal itself: its handler
 * repairs the fault (guard pages of a virtual machine, siglongjmp). From then on it gets that signal
 * directly. */
#define PB_CRASH_SURVIVED_MS 3000

struct pb_agent;
struct pb_part;

/* The cause of death of a thread, for the keeper. */
struct pb_crash {
    int32_t tid, signal, code; /* code: si_code */
    int32_t sender;            /* pid; of a signal that was sent */
    uint64_t address;          /* of a fault */
};

/* --- the handler: crash.c. The resident thread's, but for forget --- */

/* Sets the handlers, except for signals that the program ignores, or rearms them for the next crash. 0 or
 * negative errno; then none is set. */
int pb_crash_arm(void);
/* Removes the handlers that are still ours; a handler that waits continues. If the program has saved ours and
 * calls it later, it passes the signal on. */
void pb_crash_disarm(void);
/* Each signal in turn, from 0 on: its number, and why it has no handler of ours (NULL: it has one). -1: no
 * more.
 */
int pb_crash_left_out(int i, const char **ret_why);
/* 1: a thread waits in the handler, and this is reported for the first time. */
int pb_crash_take(struct pb_crash *ret);
/* The scene is recorded: the handler continues. */
void pb_crash_release(void);
int pb_crash_is_handled(void); /* a scene was recorded, or timed out; the handlers are not armed yet */
/* Then, if the program survived: the signal, which is not caught any more. The others are armed again. */
int pb_crash_survived(void);
/* In a child of fork: restores the former handlers. Async-signal-safe. */
void pb_crash_forget(void);

/* --- the keeper: crash_keep.c. The resident thread's --- */

struct pb_frame;
extern const struct pb_part pb_part_crash;

/* From any thread: waits until all rows committed before are in the copy that outlives the process, at most
 * that long. Without the GIL. */
void pb_crash_keep_rows(unsigned timeout_ms);
/* Brings the copy that outlives the process up to date. */
void pb_crash_copy_tables(struct pb_agent *agent);
/* Writes the row of a frame that a keeper sent (PB_CRASH_FRAME), into a table with the columns of
 * python.crash_frames; id: of the crash or hang. Dropped without room. */
struct pb_known_table;
void pb_crash_add_frame(const struct pb_table_spec *spec, struct pb_known_table *known, uint64_t id,
                        const struct pb_frame *frame);
/* A new id for the rows about one crash, or hang. */
uint64_t pb_crash_number(void);

/* The tables written here and by the Python part: the first column is the time. */
enum pb_crash_table { PB_CRASH_EXCEPTIONS, PB_CRASH_FRAMES, PB_CRASH_TABLES };

/* Sets the words that name a secret (probing.redact), for the Python part; by the resident thread. */
void pb_crash_set_secrets(const char *words);
