/* broker_slot: a worker that is ours for one query. Used by broker.c alone. */
#pragma once

#include "engine/caller/cancel.h"

#include <stdint.h>

struct pb_err;

struct pb_worker {
    int lock;   /* held while the worker is ours; -1: it is private, or holds the lock itself */
    int socket; /* connected */
};

/* Takes a free worker or starts one; waits until the deadline (monotonic ns, 0: none) when there are as many
 * as there may be and all are busy. fresh: do not take one that was there before. cancel:
 * stops waiting once it is set, -ECANCELED. archive: the folder that it may read, without links; NULL:
 * no file at all. */
int pb_worker_take(struct pb_worker *ret, int fresh, const char *archive, uint64_t deadline,
                   const struct pb_cancel *cancel, struct pb_err *err);
void pb_worker_done(struct pb_worker *s);

/* Starts the process that writes a Parquet file (parquet.c), and returns the socket to it. file: an absolute
 * path. */
int pb_worker_start_writer(const char *file, struct pb_err *err);

/* The same for the process that writes archives (archive_write.c). */
int pb_worker_start_archiver(struct pb_err *err);
