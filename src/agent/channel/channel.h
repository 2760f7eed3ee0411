/* channel: a stream of bytes both ways between a client and a thread of this process, with flow control and a
 * defined end on either side. For more than one question and its answer: a prompt, a paused frame, a
 * debugger.
 *
 * A channel is a connection to the control socket on which CHANNEL was asked for (frames: message.h), or a
 * TCP connection to an address that LISTEN named (plain bytes). It has two bounded rings. The resident thread
 * moves bytes between rings and sockets and never waits. The other side is a thread started for the channel
 * (spawn.h), whose Python code reads and writes; both wait without the GIL, a write for a bounded time only:
 * a client that stops reading blocks nobody. Channels do not count as jobs.
 *
 * The end: Python closes (written bytes still go out, then END with a reason); or the client ends its input
 * (reads return the rest and then nothing; writes still work); or the client is gone, or the agent detaches:
 * reads end, writes fail, code that runs for the channel is interrupted. A channel is addressed by its
 * number, never by pointer: Python code may keep one for ever. Its memory is freed when both sides have
 * released it. */
#pragma once

#include "agent/core/server.h"

#include <stddef.h>
#include <stdint.h>

#define PB_CHANNELS          8
#define PB_CHANNEL_LISTENERS 4
#define PB_CHANNEL_POLLED    (PB_CHANNELS + PB_CHANNEL_LISTENERS)

struct pb_part;
extern const struct pb_part pb_part_channels; /* channel_requests.c */

/* Sets the thread function for channels; its argument is the channel's number. Call before any is opened. */
void pb_channels_begin(void *(*thread)(void *));

/* --- by the resident thread --- */

struct pb_channel_request {
    pb_client_id client; /* 0: plain bytes over fd, which becomes the channel's */
    int fd;
    uint32_t request;
    uint64_t listener; /* the listener it came through; 0: none */
    int mode;          /* enum pb_listen_mode */
    uint64_t timeout_ms;
    const char *kind;
    const uint8_t *arguments;
    size_t size;
};

/* Has a thread started for the channel. On failure why holds a sentence, and fd stays the caller's. A later
 * failure (no Python here) is the reason of its END. */
int pb_channel_open(const struct pb_channel_request *request, char *why, size_t why_size);

/* Whether the client's connection is a channel. */
int pb_channel_is(pb_client_id client);

/* Handles a frame of such a client. -EPROTO: close the connection. */
int pb_channel_frame(pb_client_id client, const struct pb_frame *frame);

/* The client of a connection is gone. */
void pb_channel_gone(pb_client_id client);

/* Moves bytes, ends channels, acts on deadlines. Returns ms until the next call, -1 for none; pb_wake is
 * called when a channel has something to move. */
int pb_channel_turn(struct pb_server *server);

/* Ends all channels and listeners, with that reason. Does not wait. */
void pb_channels_end(struct pb_server *server, const char *reason);

/* --- plain bytes: channel_listen.c --- */

struct pb_channel_listen {
    const char *address; /* numeric, IPv4 or IPv6 */
    uint16_t port;       /* 0: any that is free */
    int mode;            /* enum pb_listen_mode */
    const char *kind;
    const uint8_t *arguments;
    size_t size;
};

/* Returns the port, or negative errno with a sentence in why. */
int pb_channel_listen(const struct pb_channel_listen *how, char *why, size_t why_size);

/* Stops listening for that kind ("": all kinds); with `channels` also closes the channels accepted there.
 * Returns how many listeners were stopped. */
int pb_channel_listen_stop(const char *kind, int channels);

/* The descriptors to poll, and the handling of their events: PB_CHANNEL_POLLED entries. */
void pb_channel_poll(struct pollfd *ret);
void pb_channel_read_events(const struct pollfd *polled);

/* --- by any thread that has its number, without the GIL --- */

/* 1: the channel's thread may begin. 0: the channel ended while the thread waited for Python. */
int pb_channel_begin(uint64_t number);

/* The request it was opened with, for its own thread: valid until pb_channel_thread_end. */
void pb_channel_describe(uint64_t number, const char **kind, const uint8_t **arguments, size_t *size);

/* Waits for bytes. Returns their number; 0: no more will come; -EAGAIN: none came in time; -EINTR: an
 * interrupt came. timeout_ms < 0: no limit. */
long pb_channel_read(uint64_t number, void *ret, size_t size, long timeout_ms);

/* Waits for room, at most timeout_ms in all. Returns how many bytes were accepted, fewer than size when the
 * time was over; -EINTR: an interrupt came while it waited, and some may have been accepted; -EPIPE: the
 * client is gone. With timeout_ms 0 it does not wait, and an interrupt is left for the next write. */
long pb_channel_write(uint64_t number, const void *data, size_t size, long timeout_ms);

/* Ends the output: the client gets the bytes written so far, and then END. The first reason counts. */
void pb_channel_close(uint64_t number, int status, const char *reason);

/* The same for all channels. */
void pb_channels_close(const char *reason);

/* Whether the client is gone or the channel closed; then the reason, if ret is not NULL. */
int pb_channel_ended(uint64_t number, char *ret, size_t size);

/* Whether an interrupt came since the last call, outside of running code. */
int pb_channel_interrupted(uint64_t number);

/* Interrupts the code that runs for the channel, if any does. */
void pb_channel_interrupt_code(uint64_t number);

/* Brackets around code that may be interrupted: pb_channel_interrupter (channel_python.c) is started when an
 * interrupt comes meanwhile. -EPIPE: the client is gone, so the code should not run. leave returns whether an
 * exception was or may have been set in this thread. */
int pb_channel_enter_code(uint64_t number, unsigned long ident);
int pb_channel_leave_code(uint64_t number);

/* By the interrupter: claims the right to raise in that thread; the channel's thread does not leave the code
 * before it is given back. -ENOENT: too late. */
int pb_channel_claim(uint64_t number, unsigned long *ident);
void pb_channel_unclaim(uint64_t number);

/* The thread's last call. Closes the channel if it is open. */
void pb_channel_thread_end(uint64_t number, int status, const char *reason);

/* In a forked child, after pb_locks_forget: its threads do not exist there. */
void pb_channels_forget(void);

/* Thread functions (channel_python.c); the argument is the channel's number. */
void *pb_channel_thread(void *argument);
void *pb_channel_interrupter(void *argument);
