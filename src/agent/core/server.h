/* server: the control socket's clients, served by the resident thread without ever blocking.
 *
 * Reads whole frames, hands each to a handler, and queues replies in a bounded buffer per client. A client is
 * closed, with no other effect, if it sends bytes that are no frame, does not say HELLO or finish a frame in
 * time, or does not read its replies. If a client disconnects while something is sent to it, the handler
 * (gone) is called later, from pb_server_read_events: sending calls no callbacks. One thread only. Memory
 * comes from mmap: a client costs address space until it sends something. */
#pragma once

#include "control/frame.h"

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define PB_SERVER_CLIENTS 24 /* 16, and 8 that are channels (channel.h) */
#define PB_SERVER_OTHERS  12

typedef uint64_t pb_client_id; /* never reused: a reply to a client that is gone is dropped */

struct pb_server_client {
    pb_client_id id;   /* 0: free, once gone is 0 too */
    pb_client_id gone; /* it was here, and `gone` has not been called for it yet */
    int fd;
    int greeted;          /* its HELLO was accepted */
    int closing;          /* close once out is empty */
    int more;             /* complete frames wait for their turn */
    uint32_t detach;      /* the request by which it asked to detach; 0: none */
    uint64_t deadline_ns; /* for HELLO, or for the rest of a frame that it began; 0: none */
    uint64_t active_ns;   /* when it last sent or read something */
    uint8_t *in, *out;
    size_t in_len, out_len;
};

/* The descriptors through which clients connect; -1: none. */
struct pb_server_ways {
    int listen_fd;   /* they connect to it, by its path in the run directory */
    int abstract_fd; /* or by its abstract name */
    int door_fd;     /* or they send one end of a socket pair through it */
    int wake_fd;     /* not for clients: ends a wait when readable; its owner reads it */
};

struct pb_server {
    struct pb_server_ways ways;
    uint64_t listen_again_ns;               /* not before: there was no descriptor for another client */
    int broken;                             /* a way in failed */
    struct pollfd others[PB_SERVER_OTHERS]; /* the owner's other descriptors to poll, and their events */
    struct pollfd
        polled[PB_SERVER_CLIENTS + 4 + PB_SERVER_OTHERS]; /* of the last wait: clients, ways, others */
    pb_client_id next_id;
    struct pb_server_client clients[PB_SERVER_CLIENTS];

    /* handle is called for each complete frame of a client, before its HELLO only for that; gone: the client
     * disconnected; busy (or NULL): whether something runs for it, so that it may stay silent. */
    void (*handle)(void *owner, struct pb_server *s, struct pb_server_client *c,
                   const struct pb_frame *frame);
    void (*gone)(void *owner, pb_client_id client);
    int (*busy)(void *owner, pb_client_id client);
    void *owner;
};

/* Takes over the descriptors; all are nonblocking or used so. */
void pb_server_init(struct pb_server *s, const struct pb_server_ways *ways);
/* Closes everything, these descriptors too. Queued replies get one last try. */
void pb_server_done(struct pb_server *s);

/* Waits up to that long for an event; changes nothing. */
void pb_server_wait(struct pb_server *s, int timeout_ms);
/* Handles the events of the wait. -EPIPE: a listening descriptor is broken, and the server cannot go on. */
int pb_server_read_events(struct pb_server *s);

/* Room in a client's queue, or -ENOENT when it is gone. */
long pb_server_room(const struct pb_server *s, pb_client_id client);

/* Queues a reply of fields written into w by pb_frame_put. -ENOENT: the client is gone; -EAGAIN: no room (a
 * client that does not read its replies is closed by the caller's next turn). */
int pb_server_send(struct pb_server *s, pb_client_id client, const void *frame, size_t size);
int pb_server_send_error(struct pb_server *s, pb_client_id client, uint32_t request, int error,
                         const char *text);
int pb_server_send_done(struct pb_server *s, pb_client_id client, uint32_t request, int status);
int pb_server_send_value(struct pb_server *s, pb_client_id client, uint32_t request, uint64_t value);

/* Closes the client once its queued replies are sent, at the latest after that time. Anything it sends
 * meanwhile is ignored. */
void pb_server_close_client(struct pb_server *s, pb_client_id client, unsigned linger_ms);

/* Sends DONE with a copy of fd, which stays the caller's (the tool's side: pb_client_take_fd). At once or not
 * at all, since a descriptor belongs to a certain byte: -EAGAIN if the client has not read its earlier
 * replies. */
int pb_server_send_fd(struct pb_server *s, pb_client_id client, uint32_t request, int fd);
