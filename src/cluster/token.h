/* token: how a service is shown who asks, found as docs/service.md says.
 *
 * A token goes where the user sends it. That of the user's own service on this machine is never sent: that
 * service is asked by its unix socket, since what listens at its address may be another user's by now. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

struct pb_err;

enum { PB_SERVICE_TOKEN = 128 };

/* Of the file that is given (NULL or "": none); else PROBING_TOKEN, or the file that PROBING_TOKEN_FILE
 * names. "" where there is none. */
int pb_service_token(const char *given, char ret[PB_SERVICE_TOKEN], struct pb_err *err);

/* The token of the user's own service on this machine; "": there is none. */
void pb_service_own_token(char ret[PB_SERVICE_TOKEN]);

/* Whether SCHEME://HOST:PORT, as a service of this machine has written it, is that address. A name stands for
 * all addresses of this machine. */
bool pb_service_is_at(const char *url, const struct sockaddr *at, socklen_t size);

/* A connection to the user's own service, by its unix socket, where its address is this one. The kernel has
 * said that the peer is this user. flags: SOCK_NONBLOCK or 0. -ENOENT: no service of the user's is there. */
int pb_service_own_connect(const struct sockaddr *at, socklen_t size, int flags);
