/* wire: see wire.h. */
#include "engine/shared/wire.h"

#include "base/time.h"
#include "control/packet.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void close_fds(struct pb_wire *m)
{
    for (unsigned i = 0; i < m->nfds; i++)
        if (m->fds[i] >= 0)
            close(m->fds[i]);
    m->nfds = 0;
}

void pb_wire_begin(struct pb_wire *m, uint32_t type)
{
    m->type = type;
    m->size = m->at = 0;
    m->failed = false;
    m->nfds = 0;
}

void pb_wire_done(struct pb_wire *m)
{
    free(m->data);
    free(m->fds);
    *m = (struct pb_wire){0};
}

static bool make_room(struct pb_wire *m, size_t size)
{
    if (size > PB_SQL_MAX_MESSAGE || m->size > PB_SQL_MAX_MESSAGE - size) {
        m->failed = true;
        return false;
    }
    if (m->size + size <= m->room)
        return true;
    size_t room = m->room ? m->room : 256;
    while (room < m->size + size)
        room *= 2;
    uint8_t *more = realloc(m->data, room);
    if (!more) {
        m->failed = true;
        return false;
    }
    m->data = more;
    m->room = room;
    return true;
}

void pb_wire_put(struct pb_wire *m, const void *data, size_t size)
{
    if (size == 0 || !make_room(m, size))
        return;
    memcpy(m->data + m->size, data, size);
    m->size += size;
}

void pb_wire_put_u32(struct pb_wire *m, uint32_t value)
{
    pb_wire_put(m, &value, sizeof(value));
}

void pb_wire_put_u64(struct pb_wire *m, uint64_t value)
{
    pb_wire_put(m, &value, sizeof(value));
}

void pb_wire_put_text(struct pb_wire *m, const char *text, size_t length)
{
    if (length > PB_SQL_MAX_MESSAGE) {
        m->failed = true;
        return;
    }
    pb_wire_put_u32(m, (uint32_t)length);
    pb_wire_put(m, text, length);
}

bool pb_wire_put_fd(struct pb_wire *m, int fd)
{
    if (m->nfds == m->fds_room) {
        unsigned room = m->fds_room ? 2 * m->fds_room : PB_SQL_FDS_AT_ONCE;
        int *more = realloc(m->fds, room * sizeof(*more));
        if (!more) {
            m->failed = true;
            return false;
        }
        m->fds = more;
        m->fds_room = room;
    }
    m->fds[m->nfds++] = fd;
    return true;
}

static bool take_bytes(struct pb_wire *m, void *to, size_t size)
{
    if (m->failed || size > m->size - m->at) {
        m->failed = true;
        memset(to, 0, size);
        return false;
    }
    memcpy(to, m->data + m->at, size);
    m->at += size;
    return true;
}

uint32_t pb_wire_u32(struct pb_wire *m)
{
    uint32_t value;
    take_bytes(m, &value, sizeof(value));
    return value;
}

uint64_t pb_wire_u64(struct pb_wire *m)
{
    uint64_t value;
    take_bytes(m, &value, sizeof(value));
    return value;
}

const char *pb_wire_text(struct pb_wire *m, uint32_t *ret_length)
{
    uint32_t length = pb_wire_u32(m);

    if (m->failed || length > m->size - m->at) {
        m->failed = true;
        return NULL;
    }
    const char *text = (const char *)m->data + m->at;
    m->at += length;
    *ret_length = length;
    return text;
}

bool pb_wire_ok(const struct pb_wire *m)
{
    return !m->failed;
}

/* Waits until the socket is ready. */
static int wait_for(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    int timeout = -1;

    if (deadline_ns) {
        uint64_t now = pb_now_ns();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        timeout = (int)((deadline_ns - now) / PB_NS_PER_MS) + 1;
    }
    int r = poll(&p, 1, timeout);
    return r < 0 ? -errno : r == 0 ? -ETIMEDOUT : 0;
}

static ssize_t send_some(int fd, struct iovec *pieces, size_t n, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(PB_SQL_FDS_AT_ONCE * sizeof(int))];
    } control;
    struct msghdr h = {.msg_iov = pieces, .msg_iovlen = n};

    if (nfds) {
        size_t bytes = nfds * sizeof(int);
        h.msg_control = control.space;
        h.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(c), fds, bytes);
    }
    return sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Header and payload in one call if the socket has room. */
static int send_one(int fd, uint32_t type, const uint8_t *data, size_t size, const int *fds, unsigned nfds,
                    uint64_t deadline_ns)
{
    unsigned char h[PB_PACKET_HEAD];

    pb_packet_head(h, (unsigned char)type, size);
    for (size_t done = 0, all = sizeof(h) + size; done < all;) {
        size_t in_header = done < sizeof(h) ? done : sizeof(h), in_data = done - in_header;
        struct iovec pieces[] = {{h + in_header, sizeof(h) - in_header},
                                 {(uint8_t *)(uintptr_t)data + in_data, size - in_data}};
        ssize_t n = send_some(fd, pieces, 2, fds, done ? 0 : nfds);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int r = errno == EAGAIN ? wait_for(fd, POLLOUT, deadline_ns) : 0;
        if (r < 0 && r != -EINTR)
            return r;
    }
    return 0;
}

int pb_wire_send(int fd, struct pb_wire *m, uint64_t deadline_ns)
{
    unsigned ahead = 0;
    int r = m->failed ? -EMSGSIZE : 0;

    for (; r == 0 && m->nfds - ahead > PB_SQL_FDS_AT_ONCE; ahead += PB_SQL_FDS_AT_ONCE)
        r = send_one(fd, PB_SQL_FDS, NULL, 0, m->fds + ahead, PB_SQL_FDS_AT_ONCE, deadline_ns);
    return r < 0 ? r : send_one(fd, m->type, m->data, m->size, m->fds + ahead, m->nfds - ahead, deadline_ns);
}

static ssize_t receive_some(int fd, void *to, size_t size, struct pb_wire *m)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(PB_SQL_FDS_AT_ONCE * sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = to, .iov_len = size};
    struct msghdr h = {.msg_iov = &piece,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof(control.space)};

    ssize_t n = recvmsg(fd, &h, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n <= 0)
        return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int *fds = (int *)(void *)CMSG_DATA(c);
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
            if (!pb_wire_put_fd(m, fds[i]))
                close(fds[i]);
    }
    /* The kernel drops descriptors beyond the process's limit: without an error here the message would look
     * as if none had been sent. */
    if (h.msg_flags & MSG_CTRUNC) {
        errno = EMFILE;
        return -1;
    }
    return n;
}

static int receive_all(int fd, void *to, size_t size, struct pb_wire *m, uint64_t deadline_ns, bool started)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = receive_some(fd, (char *)to + done, size - done, m);
        if (n > 0) {
            done += (size_t)n;
            started = true;
            continue;
        }
        if (n == 0)
            return -ECONNRESET;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        int r = errno == EAGAIN ? wait_for(fd, POLLIN, deadline_ns) : -EINTR;
        if (r < 0 && !(r == -EINTR && started))
            return r;
    }
    return 0;
}

/* The type of the next message; *ret_size: of its payload. */
static int receive_head(int fd, struct pb_wire *m, uint64_t deadline_ns, bool started, size_t *ret_size)
{
    unsigned char h[PB_PACKET_HEAD];

    int r = receive_all(fd, h, sizeof(h), m, deadline_ns, started);
    if (r == 0)
        r = pb_packet_parse(h, sizeof(h), PB_SQL_MAX_MESSAGE, ret_size);
    return r == -EPROTO ? -EBADMSG : r;
}

int pb_wire_receive(int fd, struct pb_wire *m, uint64_t deadline_ns)
{
    size_t size = 0;

    close_fds(m);
    m->size = m->at = 0;
    m->failed = false;
    int r = receive_head(fd, m, deadline_ns, false, &size);
    for (unsigned seen = 0; r == PB_SQL_FDS;) {
        if (size || m->nfds == seen)
            return -EBADMSG;
        seen = m->nfds;
        r = receive_head(fd, m, deadline_ns, true, &size);
    }
    if (r < 0)
        return r;
    if (r >= PB_SQL_MESSAGE_END)
        return -EBADMSG;
    m->type = (uint32_t)r;
    if (!make_room(m, size))
        return -ENOMEM;
    r = receive_all(fd, m->data, size, m, deadline_ns, true);
    if (r == 0)
        m->size = size;
    return r < 0 ? r : m->failed ? -ENOMEM : 0;
}
