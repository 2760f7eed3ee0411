/* connections: limits the connections of a listener, in all and for each user.
 *
 * Connections cost a client nothing, so no client may take all: users of the machine have shares
 * (pb_credentials_may_take), headers have a deadline, and when places are short the oldest connection
 * without a request or without a token is closed. Any thread. */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>

struct pb_connection;
struct pb_connections;

enum pb_connection_state {
    PB_CONNECTION_HEAD, /* the headers of a request must be complete soon */
    PB_CONNECTION_IDLE, /* it may be closed at any time */
    PB_CONNECTION_BUSY, /* a request of an authorized client is being answered */
};

/* NULL: out of memory. most: at once. is_unix: the kernel says whose a connection is. */
struct pb_connections *pb_connections_new(unsigned most, bool is_unix);
void pb_connections_free(struct pb_connections *all);

/* The limit for libmicrohttpd: higher than ours, since it closes connections a moment later. */
unsigned pb_connections_limit(const struct pb_connections *all);
/* For libmicrohttpd: a connection begins or ends. cls: struct pb_connections. */
void pb_connections_notify(void *cls, struct MHD_Connection *c, void **socket_context,
                           enum MHD_ConnectionNotificationCode code);
void pb_connections_set(struct pb_connections *all, struct MHD_Connection *c, enum pb_connection_state state);
/* Closes those whose headers are late; to be called each second or so. */
void pb_connections_sweep(struct pb_connections *all);
