/* cancel: how a caller that waits for a query is told to stop waiting. */
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdbool.h>

struct pb_cancel {
    const volatile sig_atomic_t *flag; /* a signal handler sets it; NULL: nobody does */
    int fd; /* becomes readable: an eventfd of another thread, a client's socket; 0: none */
};

static inline bool pb_cancel_is_set(const struct pb_cancel *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};

    return (c->flag && *c->flag) || (c->fd > 0 && poll(&p, 1, 0) > 0);
}
