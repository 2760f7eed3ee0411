/* relay: how a command line travels to a service and its output back, over one connection. After the
 * connection was upgraded each side sends packets (packet.h). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PB_RELAY_NAME "probing-command"
/* The header with which the tool sends the service's HOST:PORT, as the user wrote it; and the environment
 * variable with which the service passes it to the command, followed by a blank and the service's own target
 * if there is one. */
#define PB_RELAY_AT     "X-Probing-At"
#define PB_RELAY_SERVED "PROBING_SERVED"
/* The folder in which the user's service keeps its token, below that of own_folder.h. */
#define PB_SERVE_FOLDER "probing-serve"
#define PB_RELAY_MAX    (64 * 1024) /* of a packet */
#define PB_RELAY_WORDS  1024
#define PB_RELAY_UPLOAD (16 << 20) /* of all files sent along */

enum pb_relay_kind {
    /* from the tool */
    PB_RELAY_ARGUMENTS = 'A', /* words, each ended by NUL: TERM's value, then those of the command line */
    PB_RELAY_FILE = 'F', /* name, NUL, a piece of its content; both ways: sent along, and what was written */
    PB_RELAY_TERMINAL = 'T', /* rows and columns, 16 bits each: of the tool's terminal */
    PB_RELAY_BEGIN = 'B',    /* the request is complete: run the command */
    PB_RELAY_INPUT = 'I',    /* empty: end of input */
    PB_RELAY_SIGNAL = 'S',   /* one byte: SIGINT, SIGTERM */
    /* from the service */
    PB_RELAY_OUTPUT = 'O',
    PB_RELAY_ERRORS = 'E',
    PB_RELAY_EXIT = 'X', /* one byte: the exit status */
    /* between a cluster's asking and answering end (cluster/link/node_wire.h) */
    PB_RELAY_VERSION = 'V', /* the first of both */
    PB_RELAY_RANK = 'R',    /* what follows is about this rank */
    PB_RELAY_END = 'Z',     /* the answer is whole */
};

/* One end of the connection. Any thread, one at a time for each direction. */
struct pb_relay {
    int socket;
    int patience_ms;            /* how long to wait for the other end while nothing moves; -1: for ever */
    const unsigned char *early; /* bytes received before the first packet was waited for */
    size_t nearly;
};

/* Sends a packet. -EPIPE: the other end is gone, or does not read. */
int pb_relay_send(struct pb_relay *r, enum pb_relay_kind kind, const void *bytes, size_t n);
/* Receives the next packet and returns its kind. -EPIPE; -EPROTO: it is too long. */
int pb_relay_receive(struct pb_relay *r, char ret[PB_RELAY_MAX], size_t *ret_length);

/* Sends bytes without a packet, for the HTTP request before the upgrade. */
int pb_relay_put(struct pb_relay *r, const void *bytes, size_t n);
int pb_relay_take(struct pb_relay *r, void *ret, size_t n);
