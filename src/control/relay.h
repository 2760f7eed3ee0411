/* relay: how a command line travels to a service and its output back, over one connection.
 *
 * After the connection was upgraded each side sends frames: a byte that says what it is, the length (32 bits,
 * little endian), and so many bytes. */
#pragma once

#include <stdint.h>

#define PB_RELAY_NAME "probing-command"
/* The folder in which the user's service keeps its token, below that of own_folder.h. */
#define PB_SERVE_FOLDER "probing-serve"
#define PB_RELAY_HEAD   5
#define PB_RELAY_MAX    (64 * 1024) /* of a frame */
#define PB_RELAY_WORDS  1024
#define PB_RELAY_UPLOAD (16 << 20) /* of all files sent along */

enum pb_relay_kind {
    /* from the tool */
    PB_RELAY_ARGUMENTS = 'A', /* words, each ended by NUL: TERM's value, then those of the command line */
    PB_RELAY_FILE = 'F', /* name, NUL, a piece of its content; both ways: sent along, and what was written */
    PB_RELAY_TERMINAL = 'T', /* rows and columns, 16 bits each: it stands at a terminal of that size */
    PB_RELAY_BEGIN = 'B',    /* that was all: run it */
    PB_RELAY_INPUT = 'I',    /* empty: its end */
    PB_RELAY_SIGNAL = 'S',   /* one byte: SIGINT, SIGTERM */
    /* from the service */
    PB_RELAY_OUTPUT = 'O',
    PB_RELAY_ERRORS = 'E',
    PB_RELAY_EXIT = 'X', /* one byte: the exit status */
};

static inline void pb_relay_head(unsigned char ret[PB_RELAY_HEAD], enum pb_relay_kind kind, uint32_t length)
{
    ret[0] = (unsigned char)kind;
    for (int i = 0; i < 4; i++)
        ret[1 + i] = (unsigned char)(length >> (8 * i));
}

static inline uint32_t pb_relay_length(const unsigned char head[PB_RELAY_HEAD])
{
    return head[1] | (uint32_t)head[2] << 8 | (uint32_t)head[3] << 16 | (uint32_t)head[4] << 24;
}
