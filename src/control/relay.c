/* relay: see relay.h. */
#include "control/relay.h"

#include "control/packet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

/* Waits until the socket is ready, after a call that returned an error. Returns 0 to try again. */
static int wait_for(const struct pb_relay *r, short events)
{
    struct pollfd p = {.fd = r->socket, .events = events};

    if (errno == EINTR)
        return 0;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return -EPIPE;
    int n = poll(&p, 1, r->patience_ms);
    return n > 0 || (n < 0 && errno == EINTR) ? 0 : -EPIPE;
}

int pb_relay_put(struct pb_relay *r, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t more = send(r->socket, (const char *)bytes + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (more < 0 && wait_for(r, POLLOUT) == 0)
            continue;
        if (more <= 0)
            return -EPIPE;
        at += (size_t)more;
    }
    return 0;
}

int pb_relay_take(struct pb_relay *r, void *ret, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t early = r->nearly < n - at ? r->nearly : n - at;
        if (early) {
            memcpy((char *)ret + at, r->early, early);
            r->early += early;
            r->nearly -= early;
            at += early;
            continue;
        }
        ssize_t more = recv(r->socket, (char *)ret + at, n - at, MSG_DONTWAIT);
        if (more < 0 && wait_for(r, POLLIN) == 0)
            continue;
        if (more <= 0)
            return -EPIPE;
        at += (size_t)more;
    }
    return 0;
}

int pb_relay_send(struct pb_relay *r, enum pb_relay_kind kind, const void *bytes, size_t n)
{
    unsigned char head[PB_PACKET_HEAD];

    pb_packet_head(head, (unsigned char)kind, n);
    int e = pb_relay_put(r, head, sizeof(head));
    return e < 0 ? e : pb_relay_put(r, bytes, n);
}

int pb_relay_receive(struct pb_relay *r, char ret[PB_RELAY_MAX], size_t *ret_length)
{
    unsigned char head[PB_PACKET_HEAD];
    size_t n = 0;

    int e = pb_relay_take(r, head, sizeof(head));
    int kind = e < 0 ? e : pb_packet_parse(head, sizeof(head), PB_RELAY_MAX, &n);
    if (kind < 0)
        return kind;
    e = pb_relay_take(r, ret, n);
    *ret_length = n;
    return e < 0 ? e : kind;
}
