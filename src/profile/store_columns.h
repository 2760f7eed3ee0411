/* store_columns: the columns of a recording's tables, shared by the writer (store.c) and the reader
 * (store_read.c). */
#pragma once

enum pb_sample_column {
    PB_SAMPLES_TIME,
    PB_SAMPLES_UNTIL,
    PB_SAMPLES_PID,
    PB_SAMPLES_TID,
    PB_SAMPLES_THREAD,
    PB_SAMPLES_PROCESS,
    PB_SAMPLES_STACK,
    PB_SAMPLES_SAMPLES,
    PB_SAMPLES_WAITING,
    PB_SAMPLES_GIL,
    PB_SAMPLES_RAN,
    PB_SAMPLES_COLUMNS,
};

enum pb_stack_column {
    PB_STACKS_TIME,
    PB_STACKS_STACK,
    PB_STACKS_PARENT,
    PB_STACKS_FUNCTION,
    PB_STACKS_FILE,
    PB_STACKS_LINE,
    PB_STACKS_KIND,
    PB_STACKS_COLUMNS,
};

enum pb_hang_column {
    PB_HANGS_TIME,
    PB_HANGS_PID,
    PB_HANGS_TID,
    PB_HANGS_THREAD,
    PB_HANGS_PROCESS,
    PB_HANGS_DEPTH,
    PB_HANGS_FUNCTION,
    PB_HANGS_FILE,
    PB_HANGS_LINE,
    PB_HANGS_LOCALS,
    PB_HANGS_SECONDS,
    PB_HANGS_VERDICT,
    PB_HANGS_COLUMNS,
};

/* Of python.sampling: after the time, counts since the row before. */
enum pb_sampling_column {
    PB_SAMPLING_TIME,
    PB_SAMPLING_TICKS,
    PB_SAMPLING_ASLEEP,
    PB_SAMPLING_INTERRUPTED,
    PB_SAMPLING_PREEMPTED,
    PB_SAMPLING_STOPPED,
    PB_SAMPLING_REFUSED,
    PB_SAMPLING_FAILED,
    PB_SAMPLING_TRUNCATED,
    PB_SAMPLING_LATE,
    PB_SAMPLING_COLUMNS,
};
