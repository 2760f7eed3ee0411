/* wire: what a broker (the caller of a query) and an SQL worker say to each other over a Unix socket.
 *
 * A message is a packet (control/packet.h); descriptors travel with its head. Each side takes the other for
 * hostile: sizes and counts are bounded, a text that does not fit its message ends the conversation. Rows
 * come while the statement runs; a caller that does not take them holds it up, until its time is over.
 *
 *   worker: HELLO                       its release, and a pidfd of itself so that the broker can end it
 *   broker: LOCK                        the lock of the worker's slot, which it gives up when it is through
 *   broker: REQUEST                     the statements, the arenas, the time it may take
 *   worker: NEED(table, columns)        a table that the broker makes now; the columns that statements name
 *   broker: LIVE                        one arena for each source, in memory
 *   worker: WHICH(table, times, last)   which archived files belong to it? Before its snapshot, and after
 *   broker: FILES                       their paths below the folder, by source
 *   broker: TABLE, COLUMNS, BATCH...    rows of a node, where the request is over such; DONE after the last
 *   worker: COLUMNS, BATCH...           for each statement: the types, then rows (cells.h)
 *   worker: NOTE                        a sentence for a person
 *   worker: PROGRESS                    now and then where it was asked for: rows scanned, rows there are
 *   worker: DONE or ERROR               then the next REQUEST, or the end
 *   both:   FDS                         descriptors of the message that follows, where one cannot carry all
 *
 * The process that writes a Parquet file is sent COLUMNS, ROWS (as texts) and DONE. The process that writes
 * an archive is sent REQUEST (a table and its segments), asks for files with NEED, gets them with LIVE, and
 * answers DONE; or it is sent MERGE, with a file to write and the files whose rows go into it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PB_SQL_VERSION     6u
#define PB_SQL_FDS_AT_ONCE 250       /* the kernel's limit is 253 */
#define PB_SQL_MAX_SOURCES (1 << 20) /* mostly archived runs, without a descriptor */
#define PB_SQL_MAX_MESSAGE (64u << 20)
#define PB_SQL_MAX_TEXT    (4u << 20) /* of the statements, in bytes */

/* Flags of a REQUEST. */
enum pb_sql_flags {
    PB_SQL_NO_AGENT = 1,
    PB_SQL_WANTS_PROGRESS = 2,
    PB_SQL_PLAN = 4,  /* the plan of the statements over many nodes is the result */
    PB_SQL_WHOLE = 8, /* in which no aggregate is split */
    PB_SQL_NODE_ROWS =
        16, /* there are no sources; rows of nodes follow: TABLE, COLUMNS, BATCH..., and DONE */
};

enum pb_sql_message {
    PB_SQL_HELLO = 1,
    PB_SQL_REQUEST,
    PB_SQL_NEED,
    PB_SQL_LIVE,
    PB_SQL_WHICH,
    PB_SQL_FILES,
    PB_SQL_COLUMNS,
    PB_SQL_ROWS,
    PB_SQL_BATCH,
    PB_SQL_NOTE,
    PB_SQL_PROGRESS,
    PB_SQL_DONE,
    PB_SQL_ERROR,
    PB_SQL_LOCK,
    PB_SQL_FDS,
    PB_SQL_MERGE,
    PB_SQL_TABLE,
    PB_SQL_MESSAGE_END
};

/* The kind of a cell, for printing. The text is exact: SQL reads the same value from it. */
enum pb_sql_kind {
    PB_SQL_NULL,
    PB_SQL_NUMBER, /* a valid JSON number */
    PB_SQL_TEXT,
    PB_SQL_BOOL, /* true or false */
    PB_SQL_JSON, /* a list, struct or map, as JSON */
};

/* A message being written, or one received. Zero it before first use; pb_wire_done releases it. */
struct pb_wire {
    uint32_t type;
    uint8_t *data;
    size_t size, room, at; /* at: how much of it was read */
    bool failed;           /* out of memory, or read beyond its end: reported by send, and by pb_wire_ok */
    int *fds;
    unsigned nfds, fds_room; /* received ones belong to the message until taken (set to -1) */
};

void pb_wire_begin(struct pb_wire *m, uint32_t type);
void pb_wire_done(struct pb_wire *m);
void pb_wire_put(struct pb_wire *m, const void *data, size_t size);
void pb_wire_put_u32(struct pb_wire *m, uint32_t value);
void pb_wire_put_u64(struct pb_wire *m, uint64_t value);
void pb_wire_put_text(struct pb_wire *m, const char *text, size_t length);

/* Descriptors to send; they stay the caller's. False: out of memory. */
bool pb_wire_put_fd(struct pb_wire *m, int fd);

uint32_t pb_wire_u32(struct pb_wire *m);
uint64_t pb_wire_u64(struct pb_wire *m);

/* A text within the message, not terminated; NULL at its end. Valid as long as the message. */
const char *pb_wire_text(struct pb_wire *m, uint32_t *ret_length);
bool pb_wire_ok(const struct pb_wire *m);

/* deadline_ns on the monotonic clock; 0: none. -ETIMEDOUT, -EPIPE, -EMSGSIZE, -ENOMEM. */
int pb_wire_send(int fd, struct pb_wire *m, uint64_t deadline_ns);

/* -ECONNRESET: the other side has closed; -EBADMSG: not a message; -ETIMEDOUT; -EINTR: a signal came before
 * the message began; -EMFILE: too many descriptors for this process. Closes descriptors of an earlier
 * message. */
int pb_wire_receive(int fd, struct pb_wire *m, uint64_t deadline_ns);
