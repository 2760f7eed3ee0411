/* crash: fatal signals of the program, while somebody wants their scene kept (`probing catch`).
 *
 * A handler for SIGSEGV, SIGBUS, SIGFPE and SIGABRT is there only while a keeper is connected: a process of
 * ours outside, which reads the stacks of the process while the handler waits, at most PB_CRASH_WAIT_MS. Then
 * the handler gives the signal back to what was there before, and lets it happen again: a fault by returning
 * to the instruction, a signal that was sent by sending it again with the same information. So the program's
 * own handler, or the default, finds what it would have found: registers, stack, mask.
 * crash.c has the handler, crash_keep.c the conversation with the keeper, crash_python.c what the Python part
 * needs of both. */
#pragma once

#include "agent/server.h"
#include "table/arena.h"

#include <stdint.h>

#define PB_CRASH_WAIT_MS 2000
/* A process that runs this long after its scene was kept lives with that signal: its handler mends the fault
 * (guard pages of a virtual machine, siglongjmp). It gets that signal directly from then on. */
#define PB_CRASH_SURVIVED_MS 3000

struct pb_agent;

/* What a thread died of, for the keeper. */
struct pb_crash {
    int32_t tid, signal, code; /* code: si_code */
    int32_t sender;            /* pid; of a signal that was sent */
    uint64_t address;          /* of a fault */
};

/* --- the handler: crash.c. The resident thread's, but for forget --- */

/* Sets the handlers, where the program does not ignore the signal, or makes them ready for the next crash. 0
 * or negative errno; then none is set. */
int pb_crash_arm(void);
/* Gives back those that are still ours; a handler that waits goes on. One that the program has saved and
 * calls later passes on. */
void pb_crash_disarm(void);
/* Each signal in turn, from 0 on: its number, and why it has no handler of ours (NULL: it has one). -1: no
 * more.
 */
int pb_crash_left_out(int i, const char **ret_why);
/* 1: a thread waits in the handler, and this is told for the first time. */
int pb_crash_take(struct pb_crash *ret);
/* The scene is kept: the handler goes on. */
void pb_crash_release(void);
int pb_crash_is_over(void); /* a scene was kept, or given up, and nothing has been armed since */
/* After that, of a program that went on: the signal, which it keeps. The others are waited for again. */
int pb_crash_survived(void);
/* In a child of fork: gives the handlers back. Async-signal-safe. */
void pb_crash_forget(void);

/* --- the keeper: crash_keep.c. The resident thread's --- */

struct pb_frame;
/* PB_MSG_CRASH. */
void pb_crash_request(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame);
/* Tells the keeper of a crash; brings the copy of the tables up to date where a thread waits for that. */
void pb_crash_turn(struct pb_agent *agent);
int pb_crash_is_keeper(pb_client_id client);
void pb_crash_keeper_gone(pb_client_id client);
/* In a child of fork. */
void pb_crash_forget_keeper(void);
/* At detach. */
void pb_crash_end(struct pb_agent *agent);

/* From any thread: waits until all rows committed before are in the copy that outlives the process, at most
 * that long. Without the GIL. */
void pb_crash_keep_rows(unsigned timeout_ms);
/* Brings the copy that outlives the process up to date. */
void pb_crash_copy_tables(struct pb_agent *agent);
/* The row of a frame that a keeper sent (PB_CRASH_FRAME), into a table with the columns of
 * python.crash_frames; id: of the crash or hang that it belongs to. Dropped where there is no room. */
struct pb_known_table;
void pb_crash_add_frame(const struct pb_table_spec *spec, struct pb_known_table *known, uint64_t id,
                        const struct pb_frame *frame);
/* For rows about one crash, or hang. */
uint64_t pb_crash_number(void);

/* What is written, here and by the Python part: the first column is the time. */
enum pb_crash_table { PB_CRASH_EXCEPTIONS, PB_CRASH_FRAMES, PB_CRASH_TABLES };
extern const struct pb_table_spec pb_crash_tables[PB_CRASH_TABLES];

/* The words that name a secret (probing.redact), for the Python part: told by the resident thread. */
void pb_crash_set_secrets(const char *words);
