/* archive_keep: limits an archive by age and by size: removes whole files, the oldest first.
 *
 * Only files that we wrote, in the places where we write them, are removed; folders only when empty. Waits
 * briefly for queries that read (pb_archive_hold), then leaves the rest to the next time. */
#pragma once

#include <stdint.h>

#include "engine/shared/archive.h"

#include <stddef.h>

struct pb_err;

struct pb_archive_limits {
    double days;    /* older rows are removed; 0: no limit */
    uint64_t bytes; /* of all files; 0: no limit */
    /* The runs that the limits apply to: files of other runs are neither counted nor removed. NULL: all
     * runs. */
    const char (*runs)[PB_ARCHIVE_RUN];
    size_t nruns;
};

struct pb_archive_left {
    uint64_t removed, removed_bytes; /* files */
    uint64_t files, bytes;           /* that remain */
};

/* Cache for repeated calls: unchanged folders are not read again. NULL: out of memory. */
struct pb_archive_seen;
struct pb_archive_seen *pb_archive_seen_new(void);
void pb_archive_seen_free(struct pb_archive_seen *seen);

/* -EBUSY: queries kept reading; nothing was removed. */
int pb_archive_keep(const char *folder, const struct pb_archive_limits *limits, struct pb_archive_seen *seen,
                    struct pb_archive_left *ret, struct pb_err *err);

/* Waits up to two seconds until no query reads the archive, and blocks queries while the descriptor is open.
 * -EBUSY. */
int pb_archive_wait_for_readers(int top);
