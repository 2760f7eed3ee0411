/* archive_keep: how much of an archive is kept: by age and by size, whole files, the oldest first.
 *
 * Only files that we wrote, in the places where we write them, are ever removed; folders only where they are
 * empty. Waits a little for queries that read (pb_archive_hold), then leaves it to the next time. */
#pragma once

#include <stdint.h>

#include "engine/shared/archive.h"

#include <stddef.h>

struct pb_err;

struct pb_archive_limits {
    double days;    /* rows older than this go; 0: no limit */
    uint64_t bytes; /* of all files; 0: no limit */
    /* The runs that both are about: files of other runs are neither counted nor removed. NULL: all runs. */
    const char (*runs)[PB_ARCHIVE_RUN];
    size_t nruns;
};

struct pb_archive_kept {
    uint64_t removed, removed_bytes; /* files */
    uint64_t files, bytes;           /* that stay */
};

/* What a caller that keeps an archive within its limits again and again knows of it: folders that did not
 * change are not looked into. NULL: out of memory. */
struct pb_archive_seen;
struct pb_archive_seen *pb_archive_seen_new(void);
void pb_archive_seen_free(struct pb_archive_seen *seen);

/* -EBUSY: queries read all the time; nothing was removed. */
int pb_archive_keep(const char *folder, const struct pb_archive_limits *limits, struct pb_archive_seen *seen,
                    struct pb_archive_kept *ret, struct pb_err *err);

/* Waits up to two seconds until no query reads the archive, and keeps queries from it as long as the
 * descriptor is open. -EBUSY. */
int pb_archive_wait_for_readers(int top);
