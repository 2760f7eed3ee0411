/* stream_records: the records of a stream, shared by the writer (stream.c) and the reader (stream_read.c). */
#pragma once

#include "profile/profile.h"

enum pb_stream_record {
    PB_STREAM_FUNCTION = 1, /* kind, name, file; the next number */
    PB_STREAM_FRAME,        /* function, line */
    PB_STREAM_NODE,         /* parent, frame */
    PB_STREAM_THREAD,       /* pid, tid, name, process */
    PB_STREAM_SAMPLE,       /* thread, node, flags, weight, ns since the one before */
    PB_STREAM_STATE,        /* thread, whether it ran, name */
    PB_STREAM_ABOUT,        /* title, clock, rate in thousandths, UTC, processes, unverified, numbers */
    PB_STREAM_EPOCH,        /* all numbers are forgotten */
    PB_STREAM_END,          /* why */
};

/* The facts that are plain numbers, in the order in which they are sent. */
#define PB_STREAM_FACTS 15

static inline void pb_stream_facts(struct pb_profile_facts *f, uint64_t *ret[PB_STREAM_FACTS])
{
    uint64_t *const all[PB_STREAM_FACTS] = {
        &f->start.monotonic_ns, &f->start.boot_ns, &f->duration_ns, &f->ticks, &f->late,    &f->asleep,
        &f->interrupted,        &f->pinned,        &f->stopped,     &f->dead,  &f->refused, &f->failed,
        &f->truncated,          &f->apart,         &f->outside};

    for (int i = 0; i < PB_STREAM_FACTS; i++)
        ret[i] = all[i];
}
