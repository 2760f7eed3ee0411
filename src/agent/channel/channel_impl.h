/* channel_impl: struct pb_channel, shared by channel.c, channel_serve.c (frames) and channel_listen.c (plain
 * bytes). Private to them. */
#pragma once

#include "agent/channel/channel.h"
#include "control/message.h"

#define PB_CHANNEL_LINGER_MS 10000 /* for the client to read the bytes written before the end */

/* A queue of bytes. One side adds, the other takes. */
struct pb_ring {
    uint8_t *data; /* PB_CHANNEL_WINDOW of them */
    size_t at, len;
};

/* Guarded by PB_LOCK_CHANNELS except where noted. The bytes in a ring belong to the side that takes, the free
 * part to the side that adds: the resident thread copies without the lock. */
struct pb_channel {
    uint64_t number; /* 0: a free place */
    pb_client_id client;
    int fd; /* of plain bytes; used by the resident thread only, like: */
    uint32_t request;
    uint64_t listener;
    int mode;
    int telnet;       /* position of the input in a telnet command */
    uint64_t look_ns; /* when to check whether a client that ended its input still exists; 0: never */

    uint8_t *mapped; /* two rings and the arguments */
    size_t mapped_size, arguments_size;
    char kind[PB_CHANNEL_KIND];

    struct pb_ring in, out;
    uint64_t granted;  /* bytes that the client may still send */
    uint64_t consumed; /* bytes that were read and will be granted again */
    uint64_t credit;   /* bytes that the client takes */

    int has_gil;         /* its thread has the GIL */
    uint64_t timeout_ms; /* for getting the GIL */
    uint64_t begin_by_ns;

    int input_ended; /* no more bytes from the client */
    int gone;        /* the client is gone; written bytes are not read */
    int closed;      /* by its thread */
    uint64_t end_by_ns;
    int status;
    char reason[200];

    int detached;     /* the resident thread has released it: END was sent, or the client is gone */
    int thread_ended; /* its thread has released it */

    int running;            /* code that may be interrupted runs in the thread with this ident: */
    unsigned long ident;    /* as Python names it */
    int interrupt;          /* came while no code ran */
    int interrupting;       /* came while code ran */
    int interrupting_write; /* and no write has reported it yet */
    int interrupter_asked;  /* an interrupter was requested and has not started yet */
    int interrupters_there; /* about to raise it */
};

extern struct pb_channel pb_channel_places[PB_CHANNELS];

/* The caller must hold the lock. */
void pb_channel_ring_bell(struct pb_channel *c); /* wakes the threads that wait for a change */
void pb_channel_interrupt(struct pb_channel *c);
void pb_channel_lose(struct pb_channel *c, const char *why); /* the client is gone */

/* A client that is gone looks like one that only ended its input. Over loopback the kernel can tell: checks
 * that, and ends the channel or sets the time of the next check. */
void pb_channel_look_for_client(struct pb_channel *c);

/* Reads the pending bytes of a connection before it is closed: if bytes stay unread, TCP resets the
 * connection, and the client loses the last bytes sent to it. */
void pb_channel_drain(int fd);

/* Removes the channel from the list when both sides have released it; its memory is unmapped after the lock
 * is released. */
struct pb_channel_memory {
    uint8_t *mapped;
    size_t size;
};
struct pb_channel_memory pb_channel_take_ended(struct pb_channel *c);
void pb_channel_discard(struct pb_channel_memory memory);
