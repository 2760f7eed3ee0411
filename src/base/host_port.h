/* host_port: HOST:PORT as people and files write it. No name is looked up. Tools only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

/* Splits "HOST:PORT", "[V6]:PORT", "HOST", "[V6]", "V6" and "PORT" (digits alone). The host goes to ret_host,
 * without brackets, "" where there is none; *ret_port points into text, NULL where there is none. -EINVAL: a
 * bracket is not closed, or something follows it; -ENAMETOOLONG: the host. */
int pb_host_port_split(const char *text, char *ret_host, size_t size, const char **ret_port);

/* Whether only this machine reaches it: of an address, and of a host that is written in numbers. */
bool pb_is_loopback(const struct sockaddr *at);
bool pb_host_is_loopback(const char *host);
