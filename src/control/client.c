/* client: see client.h. */
#include "control/client.h"

#include "control/message.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUF_SIZE  (PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD)
#define NS_PER_MS 1000000u
#define SEND_MS   5000 /* an agent reads at once, unless the process is stopped */

void pb_client_done(struct pb_client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    if (c->buf && c->passed_fd >= 0)
        close(c->passed_fd);
    free(c->buf);
    *c = (struct pb_client){.fd = -1, .passed_fd = -1};
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void pb_client_limit(struct pb_client *c, unsigned timeout_ms)
{
    c->until = timeout_ms ? now_ns() + timeout_ms * (uint64_t)NS_PER_MS : 0;
}

/* The deadline of an operation that may take timeout_ms, within that of the conversation. 0: none. */
static uint64_t end_of_operation(const struct pb_client *c, int timeout_ms)
{
    uint64_t end = timeout_ms < 0 ? 0 : now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    return c->until && (!end || c->until < end) ? c->until : end;
}

/* Waits until the socket is ready. -ETIMEDOUT: it was not ready before `end`; -EINTR. */
static int wait_for_socket(int fd, short events, uint64_t end)
{
    struct pollfd waited = {.fd = fd, .events = events};
    uint64_t now = end ? now_ns() : 0, left = end > now ? end - now : 0;
    int timeout_ms = !end                         ? -1
                     : left / NS_PER_MS < INT_MAX ? (int)((left + NS_PER_MS - 1) / NS_PER_MS)
                                                  : INT_MAX;

    int r = poll(&waited, 1, timeout_ms);
    return r < 0 ? -errno : r == 0 ? -ETIMEDOUT : 0;
}

static int send_all(struct pb_client *c, const uint8_t *data, size_t size)
{
    uint64_t end = end_of_operation(c, SEND_MS);

    while (size > 0) {
        ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            int r = wait_for_socket(c->fd, POLLOUT, end);
            if (r < 0 && r != -EINTR)
                return r;
            if (now_ns() > end) /* also for a peer that reads a byte at a time */
                return -ETIMEDOUT;
            continue;
        }
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
    int r = send_all(c, w->buf, (size_t)size);
    return r < 0 ? r : (int64_t)c->last_id;
}

int pb_client_signal(struct pb_client *c, uint16_t type, uint32_t id)
{
    uint8_t header[PB_FRAME_HEADER];

    pb_frame_header(header, type, id, 0);
    return send_all(c, header, sizeof(header));
}

/* Keeps the last descriptor that came. The kernel closes any that does not fit into the control buffer. */
static void keep_passed(struct pb_client *c, struct msghdr *message)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(message);

    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int)))
        return;
    if (c->passed_fd >= 0)
        close(c->passed_fd);
    memcpy(&c->passed_fd, CMSG_DATA(header), sizeof(int));
}

static ssize_t receive_bytes(struct pb_client *c)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {c->buf + c->len, BUF_SIZE - c->len};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    ssize_t n = recvmsg(c->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN ? 0 : -errno;
    keep_passed(c, &message);
    return n > 0 ? n : -ECONNRESET;
}

int pb_client_take_fd(struct pb_client *c)
{
    int fd = c->passed_fd;

    c->passed_fd = -1;
    return fd < 0 ? -ENOENT : fd;
}

int pb_client_next(struct pb_client *c, struct pb_frame *ret, int timeout_ms)
{
    uint64_t end = end_of_operation(c, timeout_ms);

    /* Checked here too, since frames may keep coming without a wait. */
    if (c->until && now_ns() > c->until)
        return -ETIMEDOUT;
    memmove(c->buf, c->buf + c->used, c->len - c->used);
    c->len -= c->used;
    c->used = 0;
    for (;;) {
        int n = pb_frame_parse(c->buf, c->len, ret);
        if (n != 0) {
            c->used = n > 0 ? (size_t)n : 0;
            return n < 0 ? n : 0;
        }
        int r = wait_for_socket(c->fd, POLLIN, end);
        if (r < 0)
            return r;
        ssize_t got = receive_bytes(c);
        if (got < 0)
            return (int)got;
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
    if (reply.id != (uint32_t)id)
        return -EPROTO;
    if (reply.type == PB_MSG_ERROR)
        return -(int)pb_field_u64(&reply, PB_TAG_ERRNO, EPROTO);
    return reply.type == PB_MSG_DONE ? 0 : -EPROTO;
}

int pb_client_adopt(struct pb_client *c, int fd, uint32_t last_id)
{
    *c = (struct pb_client){.fd = fd, .last_id = last_id, .buf = malloc(BUF_SIZE), .passed_fd = -1};
    if (c->buf)
        return 0;
    pb_client_done(c);
    return -ENOMEM;
}

bool pb_secret_valid(const char *secret)
{
    return strlen(secret) == 32 && strspn(secret, "0123456789abcdef") == 32;
}

int pb_client_init(struct pb_client *c, int fd, const char *secret, int timeout_ms)
{
    int r = pb_client_adopt(c, fd, 0);
    if (r < 0)
        return r;
    r = hello(c, secret, timeout_ms);
    if (r < 0)
        pb_client_done(c);
    return r;
}
