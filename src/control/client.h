/* client: a tool's end of the control socket. Blocking, with deadlines; for tools only (it uses the heap).
 *
 * The agent is part of the target and not trusted: each limit here is for a whole frame or the whole
 * conversation, never for the next byte, so that one byte a second cannot hold the tool up. */
#pragma once

#include "control/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_client {
    int fd;
    uint32_t last_id;
    uint8_t *buf; /* what was received: frames handed out point into it */
    size_t len, used;
    int passed_fd;  /* a descriptor that came with a reply and was not taken yet; -1: none */
    uint64_t until; /* when the conversation ends, in ns of the monotonic clock; 0: no limit */
};

/* Whether this is what an agent makes: 32 hexadecimal digits. The secret is read from a file or memory of the
 * target, and sent: it must not be a line that another program takes for a command. */
bool pb_secret_valid(const char *secret);

/* Takes over a connected socket and says HELLO. -EACCES: the secret is wrong; -EPROTO: no agent answers
 * there; -ETIMEDOUT. On failure the socket is closed. */
int pb_client_init(struct pb_client *c, int fd, const char *secret, int timeout_ms);
/* Takes over a connection on which another process of ours has sent HELLO and used ids up to last_id.
 * -ENOMEM: the socket is closed. */
int pb_client_adopt(struct pb_client *c, int fd, uint32_t last_id);
void pb_client_done(struct pb_client *c);

/* All that follows has this much time together; 0: no limit. Sends have some seconds each in any case. */
void pb_client_limit(struct pb_client *c, unsigned timeout_ms);

/* Sends a request of the fields in w (started by pb_frame_begin) and returns its id, or negative errno. */
int64_t pb_client_request(struct pb_client *c, struct pb_frame_writer *w, uint16_t type);

/* The same for one without fields, with an id of the caller's choice (CANCEL names another request). */
int pb_client_signal(struct pb_client *c, uint16_t type, uint32_t id);

/* The next frame whole, valid until the next call. timeout_ms < 0: no limit but that of the conversation.
 * -ETIMEDOUT; -EINTR: a signal came;
 * -ECONNRESET: the agent is gone; -EBADMSG. */
int pb_client_next(struct pb_client *c, struct pb_frame *ret, int timeout_ms);

/* The descriptor that came with the reply just received (pb_server_send_fd); it is the caller's to check and
 * to close. -ENOENT: none came. A descriptor that is not taken is closed when the next one comes. */
int pb_client_take_fd(struct pb_client *c);
