/* own_service: the service of this user on this machine (probing-serve), and addresses that it listens at.
 *
 * Its folder describes it: lock (locked while it runs, with its pid), address, token, socket. Its token is
 * never sent to an address: by now another user's program may listen there. The service is asked by the unix
 * socket in its folder, whose other end the kernel names. */
#pragma once

#include "cluster/link/token.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

struct pb_err;

enum { PB_SERVICE_PATH = 512 };

struct pb_own_service {
    char url[PB_SERVICE_PATH];    /* SCHEME://HOST:PORT; "": it does not listen yet */
    char token[PB_SERVICE_TOKEN]; /* "": it has not made one yet */
    char folder[PB_SERVICE_PATH];
    pid_t pid;
};

/* -ENOENT: none runs. -EPERM: others may enter its folder. */
int pb_own_service_find(struct pb_own_service *ret);

/* The token in its folder, whether or not it runs; "": there is none. */
void pb_own_service_token(char ret[PB_SERVICE_TOKEN]);

/* The message of an error that a service has answered with, {"error": {"message": ..}}. False: the body is
 * none. */
bool pb_service_error(const char *body, size_t length, char *ret, size_t size);

/* Resolves an address to listen at: HOST:PORT, [V6]:PORT, PORT or HOST. NULL: any port of 127.0.0.1. */
int pb_service_resolve(const char *text, struct sockaddr_storage *ret, socklen_t *ret_size,
                       struct pb_err *err);

/* Whether SCHEME://HOST:PORT, as a service of this machine has written it, is that address. A name stands for
 * all addresses of this machine. */
bool pb_service_is_at(const char *url, const struct sockaddr *at, socklen_t size);

/* Connects to the user's own service by its unix socket, if its address is this one. flags: SOCK_NONBLOCK or
 * 0. -ENOENT: no service of this user has the address. */
int pb_own_service_connect(const struct sockaddr *at, socklen_t size, int flags);
