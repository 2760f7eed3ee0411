/* sent: the rows of a node on their way to the asking side: one answer to a list of statements.
 *
 * An answer is packets (control/packet.h), each behind three zeros and before zeros up to a multiple of
 * eight, so that its payload is aligned as cells are. HELLO comes first, with the version; then, for each
 * statement, COLUMNS and BATCH frames (the payloads of the messages of that name: cells.h), NOTEs, and DONE
 * or ERROR. An answer without as many of those as there were statements was cut short. All of it is another
 * machine's word: pb_sent_read looks at every frame before anything else does. */
#pragma once

#include "engine/shared/cells.h"

#include <stdio.h>

struct pb_err;

struct pb_sent_frame {
    uint32_t type, size;
    const uint8_t *data;
};

/* 1: the next frame; 0: no more; -EBADMSG: malformed. *at begins at 0. */
int pb_sent_next(const uint8_t *data, size_t size, size_t *at, struct pb_sent_frame *ret);

/* Writes a message as a frame. -EIO. */
int pb_sent_write(FILE *out, const struct pb_wire *m);

/* The payloads, as a worker puts them. */
struct pb_sql_column;
void pb_sent_hello(struct pb_wire *m, const char *version);
void pb_batch_put(struct pb_wire *m, const struct pb_batch *batch);

/* What an answer says to one statement. */
struct pb_sent_part {
    const uint8_t *frames; /* from its COLUMNS on; NULL: it failed */
    size_t size;
    uint64_t rows;
    int error;      /* errno of a failure; 0: none */
    char text[256]; /* of the failure */
};

struct pb_sent_check {
    const char *version; /* that the node must have */
    unsigned nparts;     /* statements that were sent */
    const int32_t *ranks;
    unsigned nranks; /* of the node; 0: not known */
    uint64_t most;   /* rows that a statement may give; 0: any number */
};

/* Looks at an answer: parts has room for nparts. -EBADMSG: it is none, or was cut short; -EPROTO: of another
 * version; -EPERM: it has rows of a rank that is not the node's; -E2BIG: more rows than were asked for. data
 * must be aligned to 8 bytes and live as long as parts are used. */
int pb_sent_read(const uint8_t *data, size_t size, const struct pb_sent_check *check,
                 struct pb_sent_part *parts, struct pb_err *err);
