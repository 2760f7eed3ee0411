/* client: see client.h. */
#include "control/client.h"

#include "control/message.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUF_SIZE (PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD)

void pb_client_done(struct pb_client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->buf);
    *c = (struct pb_client){.fd = -1};
}

static int send_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

int64_t pb_client_request(struct pb_client *c, struct pb_frame_writer *w, uint16_t type)
{
    int size = pb_frame_end(w, type, ++c->last_id);
    if (size < 0)
        return size;
    int r = send_all(c->fd, w->buf, (size_t)size);
    return r < 0 ? r : (int64_t)c->last_id;
}

int pb_client_signal(struct pb_client *c, uint16_t type, uint32_t id)
{
    uint8_t header[PB_FRAME_HEADER];

    pb_frame_header(header, type, id, 0);
    return send_all(c->fd, header, sizeof(header));
}

int pb_client_next(struct pb_client *c, struct pb_frame *ret, int timeout_ms)
{
    memmove(c->buf, c->buf + c->used, c->len - c->used);
    c->len -= c->used;
    c->used = 0;
    for (;;) {
        int n = pb_frame_parse(c->buf, c->len, ret);
        if (n != 0) {
            c->used = n > 0 ? (size_t)n : 0;
            return n < 0 ? n : 0;
        }
        struct pollfd waited = {.fd = c->fd, .events = POLLIN};
        int r = poll(&waited, 1, timeout_ms);
        if (r <= 0)
            return r < 0 ? -errno : -ETIMEDOUT;
        ssize_t got = recv(c->fd, c->buf + c->len, BUF_SIZE - c->len, 0);
        if (got <= 0)
            return got < 0 ? -errno : -ECONNRESET;
        c->len += (size_t)got;
    }
}

static int hello(struct pb_client *c, const char *secret, int timeout_ms)
{
    uint8_t buf[256];
    struct pb_frame_writer w;
    struct pb_frame reply;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_SECRET, secret);
    pb_frame_put_u64(&w, PB_TAG_VERSION, PB_CONTROL_VERSION);
    int64_t id = pb_client_request(c, &w, PB_MSG_HELLO);
    if (id < 0)
        return (int)id;
    int r = pb_client_next(c, &reply, timeout_ms);
    if (r < 0)
        return r;
    if (reply.type == PB_MSG_ERROR)
        return -(int)pb_field_u64(&reply, PB_TAG_ERRNO, EPROTO);
    return reply.type == PB_MSG_DONE ? 0 : -EPROTO;
}

int pb_client_init(struct pb_client *c, int fd, const char *secret, int timeout_ms)
{
    *c = (struct pb_client){.fd = fd, .buf = malloc(BUF_SIZE)};
    int r = c->buf ? hello(c, secret, timeout_ms) : -ENOMEM;
    if (r < 0)
        pb_client_done(c);
    return r;
}
