/* trace_table: python.trace_event, the table of spans, events and traced calls, shared by module_span.c and
 * module_trace.c. */
#pragma once

#include "table/arena.h"

enum pb_trace_column {
    PB_TRACE_TIMESTAMP,
    PB_TRACE_RECORD_TYPE,
    PB_TRACE_TRACE_ID,
    PB_TRACE_SPAN_ID,
    PB_TRACE_PARENT_ID,
    PB_TRACE_NAME,
    PB_TRACE_PHASE,
    PB_TRACE_STEP,
    PB_TRACE_THREAD_ID,
    PB_TRACE_LOCATION,
    PB_TRACE_ATTRIBUTES,
    PB_TRACE_ENDED,
    PB_TRACE_DURATION_MS,
    PB_TRACE_ERROR,
    PB_TRACE_ARGUMENTS,
    PB_TRACE_RESULT,
    PB_TRACE_LOCALS,
    PB_TRACE_COLUMNS,
};

/* Begins a row of the table, as pb_recorder_begin_row does (recorder.h). */
int pb_trace_begin_row(struct pb_row *row, uint32_t *place);

/* A new id for a row. Ids of different processes differ: each counts from a random number. */
uint64_t pb_trace_new_id(void);

/* In a forked child: its ids are not its parent's. */
void pb_trace_forget_ids(void);
