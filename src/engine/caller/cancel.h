/* cancel: how a caller that waits for a query is interrupted. */
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdbool.h>

struct pb_cancel {
    const volatile sig_atomic_t *flag; /* set by a signal handler; may be NULL */
    int fd; /* becomes readable: an eventfd of another thread, a client's socket; 0: none */
};

static inline bool pb_cancel_is_set(const struct pb_cancel *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};

    return (c->flag && *c->flag) || (c->fd > 0 && poll(&p, 1, 0) > 0);
}
