/* websocket: the handshake and the frames of RFC 6455, the server's side, as far as messages of text need
 * them. No state, any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PB_WEBSOCKET_ACCEPT 29 /* the answer to a key, with its NUL */

enum pb_websocket_kind {
    PB_WEBSOCKET_CONTINUED = 0,
    PB_WEBSOCKET_TEXT = 1,
    PB_WEBSOCKET_BINARY = 2,
    PB_WEBSOCKET_CLOSE = 8,
    PB_WEBSOCKET_PING = 9,
    PB_WEBSOCKET_PONG = 10
};

struct pb_websocket_frame {
    enum pb_websocket_kind kind;
    bool last;   /* of its message */
    size_t head; /* bytes before its content */
    uint64_t length;
    unsigned char mask[4];
};

/* What a client's Sec-WebSocket-Key is answered with. False: it is no key. */
bool pb_websocket_accept(const char *key, char ret[PB_WEBSOCKET_ACCEPT]);

/* The head of the frame that the bytes begin with. 0: more are needed; -EPROTO: no client may send that. */
int pb_websocket_parse(const unsigned char *bytes, size_t n, struct pb_websocket_frame *ret);
/* Takes the client's mask off a frame's content. */
void pb_websocket_unmask(const struct pb_websocket_frame *f, char *content, size_t n);

/* The head of a frame that this side sends; how long it is. */
size_t pb_websocket_head(enum pb_websocket_kind kind, size_t length, unsigned char ret[10]);
