/* trace_table: python.trace_event, the table of spans, events and traced calls, shared by module_span.c and
 * module_trace.c. */
#pragma once

#include "control/tables.def"
#include "table/arena.h"

#define PB_TRACE_ID(id, ...) PB_TRACE_##id,
enum pb_trace_column { PB_TABLE_TRACE_EVENT(PB_NOTHING, PB_TRACE_ID) PB_TRACE_COLUMNS };

/* Begins a row of the table, as pb_recorder_begin_row does (recorder.h). */
int pb_trace_begin_row(struct pb_row *row, uint32_t *place);

/* A new id for a row. Ids of different processes differ: each counts from a random number. */
uint64_t pb_trace_new_id(void);

/* In a forked child: its ids are not its parent's. */
void pb_trace_forget_ids(void);
