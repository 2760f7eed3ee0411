/* channel_impl: a channel as channel.c (both ends of the rings, frames) and channel_listen.c (plain bytes)
 * share it. Nobody else includes this. */
#pragma once

#include "agent/channel.h"
#include "control/message.h"

#define PB_CHANNEL_LINGER_MS 10000 /* for the client to take what was written before the end */

/* Bytes in order. One side adds, the other takes. */
struct pb_ring {
    uint8_t *data; /* PB_CHANNEL_WINDOW of them */
    size_t at, len;
};

/* Guarded by PB_LOCK_CHANNELS but for what is said. What lies in a ring belongs to the side that takes, its
 * free part to the side that adds: the resident thread copies without the lock. */
struct pb_channel {
    uint64_t number; /* 0: a free place */
    pb_client_id client;
    int fd; /* of plain bytes; the resident thread's alone, as are: */
    uint32_t request;
    uint64_t listener;
    int mode;
    int telnet;       /* where in a telnet command the input is */
    uint64_t look_ns; /* when to look whether a client that ended its input is there; 0: never */

    uint8_t *mapped; /* two rings and the arguments */
    size_t mapped_size, arguments_size;
    char kind[PB_CHANNEL_KIND];

    struct pb_ring in, out;
    uint64_t granted;  /* bytes that the client may still send */
    uint64_t consumed; /* bytes that were read, and are to be granted again */
    uint64_t credit;   /* bytes that the client takes */

    int begun;           /* its thread has the GIL */
    uint64_t timeout_ms; /* to get that */
    uint64_t begin_by_ns;

    int input_ended; /* no more bytes from the client */
    int gone;        /* the client is; nobody reads what is written */
    int closed;      /* by its thread */
    uint64_t end_by_ns;
    int status;
    char reason[200];

    int detached;     /* the resident thread has let go of it: END was sent, or the client is gone */
    int thread_ended; /* and so has its thread */

    int running;            /* code that may be interrupted, in the thread of that: */
    unsigned long ident;    /* as Python names it */
    int interrupt;          /* came while no code ran */
    int interrupting;       /* came while code ran */
    int interrupting_write; /* and a write has not been told yet */
    int interrupter_asked;  /* and is not there yet */
    int interrupters_there; /* about to raise it */
};

extern struct pb_channel pb_channel_places[PB_CHANNELS];

/* With the lock held. */
struct pb_channel *pb_channel_find(uint64_t number);
void pb_channel_ring_bell(struct pb_channel *c); /* something changed: threads that wait look again */
void pb_channel_interrupt(struct pb_channel *c);
void pb_channel_lose(struct pb_channel *c, const char *why); /* the client is gone */

/* A client that is gone looks like one that ended its input alone. Over loopback the kernel tells them apart:
 * finds out, and ends the channel or looks again later. */
void pb_channel_look_for_client(struct pb_channel *c);

/* Reads what is there of a connection that is to be closed: TCP tells a client that wrote more than was read
 * that its connection is broken, and the client loses what was sent to it last. */
void pb_channel_drain(int fd);

/* Takes the channel off the list where both sides have let go; its memory is to be unmapped after the lock
 * is given back. */
struct pb_channel_memory {
    uint8_t *mapped;
    size_t size;
};
struct pb_channel_memory pb_channel_take_ended(struct pb_channel *c);
void pb_channel_discard(struct pb_channel_memory memory);
