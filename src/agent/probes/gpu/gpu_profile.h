/* gpu_profile: what the files of this folder share. */
#pragma once

#include "agent/probes/gpu/cupti.h"
#include "agent/probes/gpu/gpu_clock.h"

struct pb_gpu_totals {
    uint64_t kernels, copies; /* that made rows */
    uint64_t unfinished;      /* that were not over when the recording ended */
    uint64_t lost;            /* that found no room: in CUPTI's buffers or in the tables */
};

struct pb_gpu_recording {
    int64_t begun, ended; /* CLOCK_MONOTONIC ns */
    uint32_t version;     /* of CUPTI */
    char why[200];        /* why it ended early; "": it did not */
};

/* gpu_rows.c: for the thread of a recording. begin: -ENOMEM. done gives its memory back. */
int pb_gpu_rows_begin(void);
void pb_gpu_rows_done(void);
void pb_gpu_rows_add(const struct pb_cupti_record *record, const struct pb_gpu_clock *clock,
                     struct pb_gpu_totals *totals);
void pb_gpu_rows_end(const struct pb_gpu_recording *recording, const struct pb_gpu_totals *totals);
