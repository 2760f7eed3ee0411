/* address: an address that the agent listens on for prompts in plain bytes (nc, telnet), and the request to
 * do so. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pb_call;
struct pb_err;
struct pb_session;

struct pb_address {
    char host[64]; /* numeric, IPv4 or IPv6 */
    uint16_t port; /* 0: any free port */
    bool loopback; /* reachable from this machine only */
};

/* "PORT", "HOST", "HOST:PORT", "[HOST]:PORT", numbers or localhost; NULL: 127.0.0.1 and a free port.
 * -EINVAL with a sentence. */
int pb_address_parse(const char *text, struct pb_address *ret, struct pb_err *err);

/* The token of the call (--token TOKEN, "-": a line of stdin), "" where none is given. PB_USAGE where the
 * address needs one. */
int pb_address_token(const struct pb_call *call, const struct pb_address *address, char *ret, unsigned size,
                     struct pb_err *err);

/* Has the agent of process pid listen for connections of a kind. Returns the port. -EPERM: a seccomp filter
 * would kill the process for it. */
int pb_address_listen(pid_t pid, struct pb_session *session, const char *kind,
                      const struct pb_address *address, const char *token, struct pb_err *err);

/* The same for a binary protocol, in which no byte is a key press; arguments go to the code of the kind. */
int pb_address_listen_bytes(pid_t pid, struct pb_session *session, const char *kind,
                            const struct pb_address *address, const char *arguments, struct pb_err *err);

/* Stops listening; with channels also ends the prompts opened that way. Returns how many addresses there
 * were. */
int pb_address_stop(struct pb_session *session, const char *kind, bool channels, struct pb_err *err);

/* --stop of a command that listens: stops all addresses of that kind, or fails with `otherwise` ("it was not
 * listening"). PB_USAGE where the call has an address or a token as well. */
int pb_address_stop_all(const struct pb_call *call, const char *kind, const char *otherwise,
                        struct pb_err *err);

/* The host under which this machine reaches the address. */
const char *pb_address_host(const struct pb_address *address);
/* Prints how to connect: a command, "nc HOST PORT", or HOST:PORT. */
void pb_address_tell(const struct pb_address *address, int port);
void pb_address_tell_plain(const struct pb_address *address, int port);
