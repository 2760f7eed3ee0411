/* server: the control socket's clients, served by the resident thread without ever blocking.
 *
 * Reads whole frames, hands each to a handler, and queues replies in a bounded buffer a client. A client that
 * sends what is no frame, does not say HELLO or end a frame in time, or lets its replies pile up is closed,
 * and nothing else happens. A client that goes away while something is sent to it is told of (gone) later,
 * from pb_server_deal: sending calls nobody back. One thread only. Memory comes from mmap: a client costs
 * address space until it sends something. */
#pragma once

#include "control/frame.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define PB_SERVER_CLIENTS 24 /* 16, and 8 that are channels (channel.h) */
#define PB_SERVER_OTHERS  12

typedef uint64_t pb_client_id; /* never reused: a reply to a client that is gone goes nowhere */

struct pb_server_client {
    pb_client_id id;   /* 0: free, once gone is 0 too */
    pb_client_id gone; /* was here, and its going has not been told yet */
    int fd;
    int greeted;          /* HELLO was right */
    int closing;          /* close once out is empty */
    int more;             /* whole frames are there that had no turn yet */
    uint32_t detach;      /* the request by which it asked to detach; 0: none */
    uint64_t deadline_ns; /* for HELLO, or for the rest of a frame that it began; 0: none */
    uint64_t active_ns;   /* when it last sent or took something */
    uint8_t *in, *out;
    size_t in_len, out_len;
};

/* The descriptors by which clients come; -1: none. */
struct pb_server_ways {
    int listen_fd;   /* they connect to it, by its path in the run directory */
    int abstract_fd; /* or by its abstract name */
    int door_fd;     /* or they send one end of a socket pair through it */
    int wake_fd;     /* not a way in: ends a wait when it is readable; its owner reads it */
};

struct pb_server {
    struct pb_server_ways ways;
    uint64_t listen_again_ns;               /* not before: there was no descriptor for another client */
    int broken;                             /* a way in failed */
    struct pollfd others[PB_SERVER_OTHERS]; /* what else its owner waits for, and what came of it */
    struct pollfd
        polled[PB_SERVER_CLIENTS + 4 + PB_SERVER_OTHERS]; /* of the last wait: clients, ways, others */
    pb_client_id next_id;
    struct pb_server_client clients[PB_SERVER_CLIENTS];

    /* Called for each whole frame of a client; before its HELLO only for that. gone: the client is no more.
     * busy (or NULL): whether something runs for it, so that it may stay silent. */
    void (*handle)(void *owner, struct pb_server *s, struct pb_server_client *c,
                   const struct pb_frame *frame);
    void (*gone)(void *owner, pb_client_id client);
    int (*busy)(void *owner, pb_client_id client);
    void *owner;
};

/* Takes over the ways in; all are nonblocking or read so. */
void pb_server_init(struct pb_server *s, const struct pb_server_ways *ways);
/* Closes everything, the ways in too. Queued replies get one last try. */
void pb_server_done(struct pb_server *s);

/* Waits up to that long for something to happen; changes nothing. */
void pb_server_wait(struct pb_server *s, int timeout_ms);
/* Deals with what the wait found. -EPIPE: a way in is broken, and the server can serve no more. */
int pb_server_deal(struct pb_server *s);

/* Room in a client's queue, or -ENOENT when it is gone. */
long pb_server_room(const struct pb_server *s, pb_client_id client);

/* Queues a reply of fields written into w by pb_frame_put. -ENOENT: the client is gone; -EAGAIN: no room (a
 * client that does not read its plain replies is closed by the caller's next turn). */
int pb_server_send(struct pb_server *s, pb_client_id client, const void *frame, size_t size);
int pb_server_send_error(struct pb_server *s, pb_client_id client, uint32_t request, int error,
                         const char *text);
int pb_server_send_done(struct pb_server *s, pb_client_id client, uint32_t request, int status);

/* Closes the client once what is queued for it has gone, at the latest after that time. What it sends
 * meanwhile is passed over. */
void pb_server_close_client(struct pb_server *s, pb_client_id client, unsigned linger_ms);

/* The same as DONE with a copy of fd beside it, which stays the caller's (the tool's side:
 * pb_client_take_fd). It goes out at once or not at all, since a descriptor goes with a certain byte: -EAGAIN
 * where the client has not read its earlier replies. */
int pb_server_send_fd(struct pb_server *s, pb_client_id client, uint32_t request, int fd);
