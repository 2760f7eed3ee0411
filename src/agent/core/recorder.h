/* recorder: how threads of the program reach the tables of the agent, which may be detached at any moment.
 *
 * A thread is inside from enter to leave; the tables stay mapped as long as any thread is inside. Outside, a
 * pointer to a table is not valid: an object that keeps one (a Table in Python) keeps the generation with it,
 * and looks the table up again if another agent runs by now. Nothing between enter and leave may wait or call
 * Python. */
#pragma once

#include <stdint.h>

struct pb_arena;
struct pb_row;
struct pb_table;
struct pb_table_spec;

/* The tables of this process; NULL: nothing records here. If not NULL, leave must follow, with *place. Any
 * thread, signal-safe. */
struct pb_arena *pb_recorder_enter(uint32_t *place);
void pb_recorder_leave(uint32_t place);

/* Whether something records, as a hint: it may have ended when this returns. One load. */
int pb_recorder_is_open(void);

/* Differs for each arena of this process; 0 is none. Inside only. */
uint64_t pb_recorder_generation(void);

/* A table that the agent itself makes when first needed: that of this arena, found by one load after that.
 * NULL: it cannot be made. Inside only; known is static and zero. */
struct pb_known_table {
    struct pb_table *table;
    uint64_t generation;
};
struct pb_table *pb_recorder_table(struct pb_arena *arena, const struct pb_table_spec *spec,
                                   struct pb_known_table *known);

/* Enters and begins a row of such a table: 0, and pb_recorder_end_row must follow, which commits it and
 * leaves. -ENOENT: nothing records here; -ENOMEM: there is no table; others are pb_row_begin's. */
int pb_recorder_begin_row(const struct pb_table_spec *spec, struct pb_known_table *known, struct pb_row *row,
                          uint32_t *place);
void pb_recorder_end_row(struct pb_row *row, uint32_t place);

/* For the resident thread. close returns 0 once no thread is inside; -EBUSY: one stays inside (held by a
 * debugger), and the arena must stay mapped for good. */
void pb_recorder_open(struct pb_arena *arena);
int pb_recorder_close(void);

/* In a forked child: no thread is inside the recorder, and recording is off. */
void pb_recorder_forget(void);
