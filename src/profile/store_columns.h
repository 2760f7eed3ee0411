/* store_columns: the columns of a recording's tables, shared by the writer (store.c) and the reader
 * (store_read.c). */
#pragma once

#include "control/tables.def"

#define PB_SAMPLES_ID(id, ...)  PB_SAMPLES_##id,
#define PB_STACKS_ID(id, ...)   PB_STACKS_##id,
#define PB_HANGS_ID(id, ...)    PB_HANGS_##id,
#define PB_SAMPLING_ID(id, ...) PB_SAMPLING_##id,
enum pb_sample_column { PB_TABLE_SAMPLES(PB_NOTHING, PB_SAMPLES_ID) PB_SAMPLES_COLUMNS };
enum pb_stack_column { PB_TABLE_STACKS(PB_NOTHING, PB_STACKS_ID) PB_STACKS_COLUMNS };
enum pb_hang_column { PB_TABLE_HANGS(PB_NOTHING, PB_HANGS_ID) PB_HANGS_COLUMNS };
enum pb_sampling_column { PB_TABLE_SAMPLING(PB_NOTHING, PB_SAMPLING_ID) PB_SAMPLING_COLUMNS };
