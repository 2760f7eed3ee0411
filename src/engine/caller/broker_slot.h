/* broker_slot: a worker reserved for one query. Used by broker.c alone. */
#pragma once

#include "engine/caller/cancel.h"

#include <stdint.h>

struct pb_err;

struct pb_worker {
    int lock;   /* held while the worker is reserved; -1: it is private, or holds the lock itself */
    int socket; /* connected */
};

/* Takes a free worker or starts one; when the limit is reached and all are busy, waits until the deadline
 * (monotonic ns, 0: none). fresh: do not take an existing one. cancel: ends the wait, -ECANCELED. archive:
 * the folder that the worker may read, links resolved; NULL: no file at all. */
int pb_worker_take(struct pb_worker *ret, int fresh, const char *archive, uint64_t deadline,
                   const struct pb_cancel *cancel, struct pb_err *err);
void pb_worker_done(struct pb_worker *s);

/* Starts the process that writes a Parquet file (parquet.c), and returns the socket to it. file: an absolute
 * path. */
int pb_worker_start_writer(const char *file, struct pb_err *err);

/* The same for the process that writes archives (archive_write.c). */
int pb_worker_start_archiver(struct pb_err *err);
