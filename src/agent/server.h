/* server: the control socket's clients, served by the resident thread without ever blocking.
 *
 * Reads whole frames, hands each to a handler, and queues replies in a bounded buffer a client. A client that
 * sends what is no frame, does not say HELLO in time or lets its replies pile up is closed, and nothing else
 * happens. One thread only. Memory comes from mmap: a client costs address space until it sends something. */
#pragma once

#include "control/frame.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#define PB_SERVER_CLIENTS 16

typedef uint64_t pb_client_id; /* never reused: a reply to a client that is gone goes nowhere */

struct pb_server_client {
    pb_client_id id; /* 0: free */
    int fd;
    int greeted;          /* HELLO was right */
    int closing;          /* close once out is empty */
    uint32_t detach;      /* the request by which it asked to detach; 0: none */
    uint64_t deadline_ns; /* for HELLO */
    uint8_t *in, *out;
    size_t in_len, out_len;
};

struct pb_server {
    int epoll_fd, wake_fd;
    int listen_fd;            /* clients connect to it; -1: there is no path to connect to */
    int door_fd;              /* or they send one end of a socket pair through it */
    uint64_t listen_again_ns; /* not before: the process was out of descriptors */
    int nevents;              /* of the wait before */
    struct epoll_event events[PB_SERVER_CLIENTS + 4];
    pb_client_id next_id;
    struct pb_server_client clients[PB_SERVER_CLIENTS];

    /* Called for each whole frame of a client; before its HELLO only for that. gone: the client is no more.
     */
    void (*handle)(void *owner, struct pb_server *s, struct pb_server_client *c,
                   const struct pb_frame *frame);
    void (*gone)(void *owner, pb_client_id client);
    void *owner;
};

/* Takes over the ways in. 0 or negative errno; on failure nothing is open but those. */
int pb_server_init(struct pb_server *s, int listen_fd, int door_fd);
/* Closes everything, the ways in too. Queued replies get one last try. */
void pb_server_done(struct pb_server *s);

/* Waits up to that long for something to happen; changes nothing. */
void pb_server_wait(struct pb_server *s, int timeout_ms);
/* Deals with what the wait found. Descriptors are opened and closed in here alone. */
void pb_server_deal(struct pb_server *s);

/* Makes every wait end when fd is readable; what there is to read is the caller's to take. */
int pb_server_watch(struct pb_server *s, int fd);

/* Makes a wait under way return; from any thread, or a signal handler, between init and done. */
void pb_server_wake(struct pb_server *s);

/* Room in a client's queue, or -ENOENT when it is gone. */
long pb_server_room(const struct pb_server *s, pb_client_id client);

/* Queues a reply of fields written into w by pb_frame_put. -ENOENT: the client is gone; -EAGAIN: no room (a
 * client that does not read its plain replies is closed by the caller's next turn). */
int pb_server_send(struct pb_server *s, pb_client_id client, const void *frame, size_t size);
int pb_server_send_error(struct pb_server *s, pb_client_id client, uint32_t request, int error,
                         const char *text);
int pb_server_send_done(struct pb_server *s, pb_client_id client, uint32_t request, int status);

/* The same as DONE with a copy of fd beside it, which stays the caller's (the tool's side:
 * pb_client_take_fd). It goes out at once or not at all, since a descriptor goes with a certain byte: -EAGAIN
 * where the client has not read its earlier replies. */
int pb_server_send_fd(struct pb_server *s, pb_client_id client, uint32_t request, int fd);
