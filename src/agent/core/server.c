/* server: see server.h. */
#include "agent/core/server.h"

#include "agent/core/agent_clock.h"
#include "agent/core/fds.h"
#include "control/message.h"
#include "table/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define IN_SIZE         (PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD)
#define OUT_SIZE        (256u << 10)
#define HELLO_TIME_NS   (5ull * PB_NS_PER_S)
#define FRAME_TIME_NS   (10ull * PB_NS_PER_S)
#define IDLE_TIME_NS    (30ull * PB_NS_PER_S)
#define LISTEN_PAUSE_NS PB_NS_PER_S
#define FRAMES_A_TURN   64 /* per client, so that others get their turn */

enum { LISTENER = PB_SERVER_CLIENTS, ABSTRACT, DOOR, WAKER, OTHERS, SOURCES = OTHERS + PB_SERVER_OTHERS };
_Static_assert(sizeof(((struct pb_server *)0)->polled) / sizeof(struct pollfd) == SOURCES, "room for all");

void pb_server_init(struct pb_server *s, const struct pb_server_ways *ways)
{
    s->ways = *ways;
    s->next_id = 1;
    for (int i = 0; i < SOURCES; i++)
        s->polled[i].fd = -1;
    for (int i = 0; i < PB_SERVER_OTHERS; i++)
        s->others[i].fd = -1;
}

/* Calls no callback: tell_gone does that later, outside of any send. */
static void drop_client(struct pb_server_client *c)
{
    pb_client_id id = c->id;

    pb_fd_close(c->fd);
    munmap(c->in, IN_SIZE);
    munmap(c->out, OUT_SIZE);
    *c = (struct pb_server_client){.fd = -1, .gone = id};
}

static void tell_gone(struct pb_server *s)
{
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (s->clients[i].gone) {
            pb_client_id id = s->clients[i].gone;
            s->clients[i].gone = 0;
            if (s->gone)
                s->gone(s->owner, id);
        }
}

static void flush(struct pb_server_client *c)
{
    while (c->out_len > 0) {
        ssize_t n = send(c->fd, c->out, c->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            drop_client(c);
            return;
        }
        memmove(c->out, c->out + n, c->out_len - (size_t)n);
        c->out_len -= (size_t)n;
        c->active_ns = pb_now_ns();
    }
    if (c->closing)
        drop_client(c);
}

static struct pb_server_client *find_client(const struct pb_server *s, pb_client_id client)
{
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (client && s->clients[i].id == client)
            return (struct pb_server_client *)&s->clients[i];
    return NULL;
}

void pb_server_done(struct pb_server *s)
{
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (s->clients[i].id) {
            s->clients[i].closing = 1;
            flush(&s->clients[i]);
            if (s->clients[i].id)
                drop_client(&s->clients[i]);
        }
    tell_gone(s);
    pb_fd_close(s->ways.listen_fd);
    pb_fd_close(s->ways.abstract_fd);
    pb_fd_close(s->ways.door_fd);
    s->ways = (struct pb_server_ways){-1, -1, -1, -1};
}

void pb_server_close_client(struct pb_server *s, pb_client_id client, unsigned linger_ms)
{
    struct pb_server_client *c = find_client(s, client);
    if (!c)
        return;
    c->closing = 1;
    c->more = 0;
    c->deadline_ns = pb_now_ns() + linger_ms * PB_NS_PER_MS;
    flush(c);
}

/* Only the owner of the process and root may connect; the secret, which only they can read, is checked
 * next. */
static int peer_allowed(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

/* The descriptor in a message received through the door, or -1. */
static int take_from_door(int door_fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int fd = -1;

    if (recvmsg(door_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
        return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

static struct pb_server_client *find_place(struct pb_server *s)
{
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (!s->clients[i].id && !s->clients[i].gone)
            return &s->clients[i];
    return NULL;
}

/* If all places are taken: closes the client that was inactive longest, at least half a minute, and has
 * nothing running or does not read its output. A tool that was stopped (Ctrl-Z) does not keep others out. */
static void close_idlest(struct pb_server *s, uint64_t now)
{
    struct pb_server_client *oldest = NULL;

    for (int i = 0; i < PB_SERVER_CLIENTS; i++) {
        struct pb_server_client *c = &s->clients[i];
        if (!c->id || now - c->active_ns < IDLE_TIME_NS ||
            (c->out_len == 0 && s->busy && s->busy(s->owner, c->id)))
            continue;
        if (!oldest || c->active_ns < oldest->active_ns)
            oldest = c;
    }
    if (oldest)
        drop_client(oldest);
    tell_gone(s);
}

static void take_client(struct pb_server *s, int fd)
{
    uint64_t now = pb_now_ns();

    if (fd < 0)
        return;
    if (!peer_allowed(fd) || !pb_fds_room()) {
        close(fd);
        return;
    }
    if (!find_place(s))
        close_idlest(s, now);
    struct pb_server_client *c = find_place(s);
    fd = c ? pb_fd_keep(fd) : (close(fd), -1);
    if (fd < 0)
        return;
    void *in = pb_pages_map(IN_SIZE), *out = pb_pages_map(OUT_SIZE);
    if (!in || !out) {
        if (in)
            munmap(in, IN_SIZE);
        if (out)
            munmap(out, OUT_SIZE);
        pb_fd_close(fd);
        return;
    }
    /* A child of fork does not need them. */
    (void)madvise(in, IN_SIZE, MADV_DONTFORK);
    (void)madvise(out, OUT_SIZE, MADV_DONTFORK);
    *c = (struct pb_server_client){.id = s->next_id++,
                                   .fd = fd,
                                   .in = in,
                                   .out = out,
                                   .deadline_ns = now + HELLO_TIME_NS,
                                   .active_ns = now};
}

/* Handles the complete frames, up to a number. -EBADMSG and the like: close this client. */
static int take_frames(struct pb_server *s, struct pb_server_client *c)
{
    struct pb_frame frame;
    pb_client_id id = c->id;
    size_t used = 0;
    int n = 0, taken = 0;

    while (taken < FRAMES_A_TURN && (n = pb_frame_parse(c->in + used, c->in_len - used, &frame)) > 0) {
        if (!c->greeted && frame.type != PB_MSG_HELLO)
            return -EACCES;
        s->handle(s->owner, s, c, &frame);
        if (c->id != id || c->closing) /* closed by the handler's reply, or to be closed once that is read */
            return 0;
        used += (size_t)n;
        taken++;
    }
    memmove(c->in, c->in + used, c->in_len - used);
    c->in_len -= used;
    c->more = taken == FRAMES_A_TURN && c->in_len > 0;
    if (!c->greeted)
        return n < 0 ? n : 0;
    if (c->in_len == 0 || c->more)
        c->deadline_ns = 0;
    else if (taken || !c->deadline_ns) /* single bytes do not extend its deadline */
        c->deadline_ns = pb_now_ns() + FRAME_TIME_NS;
    return n < 0 ? n : 0;
}

static void read_client(struct pb_server *s, struct pb_server_client *c)
{
    ssize_t n = recv(c->fd, c->in + c->in_len, IN_SIZE - c->in_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop_client(c);
        return;
    }
    if (c->closing) /* its further requests are ignored */
        return;
    c->in_len += (size_t)n;
    c->active_ns = pb_now_ns();
    if (take_frames(s, c) < 0)
        drop_client(c);
}

static void close_the_late(struct pb_server *s)
{
    uint64_t now = pb_now_ns();

    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (s->clients[i].id && s->clients[i].deadline_ns && now > s->clients[i].deadline_ns)
            drop_client(&s->clients[i]);
}

/* When descriptors run out, a connection stays pending and would wake us again and again. */
static void take_from_listener(struct pb_server *s, int listen_fd)
{
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
        s->listen_again_ns = pb_now_ns() + LISTEN_PAUSE_NS;
    take_client(s, fd);
}

void pb_server_wait(struct pb_server *s, int timeout_ms)
{
    int listens = !s->listen_again_ns || pb_now_ns() >= s->listen_again_ns;

    if (listens)
        s->listen_again_ns = 0;
    for (int i = 0; i < PB_SERVER_CLIENTS; i++) {
        struct pb_server_client *c = &s->clients[i];
        s->polled[i] = (struct pollfd){
            .fd = c->id ? c->fd : -1,
            /* Received frames are handled first, so that the buffer does not fill up. */
            .events = (short)((c->more ? 0 : POLLIN) | (c->out_len ? POLLOUT : 0)),
        };
        if (c->more || c->gone)
            timeout_ms = 0;
    }
    const int ways[] = {listens ? s->ways.listen_fd : -1, listens ? s->ways.abstract_fd : -1, s->ways.door_fd,
                        s->ways.wake_fd};
    for (int i = LISTENER; i < OTHERS; i++)
        s->polled[i] = (struct pollfd){.fd = ways[i - LISTENER], .events = POLLIN};
    memcpy(s->polled + OTHERS, s->others, sizeof(s->others));
    if (poll(s->polled, SOURCES, timeout_ms) < 0)
        for (int i = 0; i < SOURCES; i++)
            s->polled[i].revents = 0;
    memcpy(s->others, s->polled + OTHERS, sizeof(s->others));
}

/* The client may be another than the polled one: recv and send tell what there is. */
static void serve_client(struct pb_server *s, struct pb_server_client *c, short events)
{
    if (c->id && events & POLLOUT)
        flush(c);
    if (c->id && c->more) {
        if (take_frames(s, c) < 0)
            drop_client(c);
    } else if (c->id && events & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) {
        read_client(s, c);
    }
}

int pb_server_read_events(struct pb_server *s)
{
    short events[SOURCES];

    for (int i = 0; i < SOURCES; i++) {
        events[i] = s->polled[i].revents;
        s->polled[i].revents = 0;
    }
    tell_gone(s);
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        serve_client(s, &s->clients[i], events[i]);
    for (int i = LISTENER; i < OTHERS; i++)
        if (events[i] & (POLLERR | POLLHUP | POLLNVAL))
            s->broken = 1; /* polling it again would return at once, for ever */
    if (s->broken)
        return -EPIPE;
    if (events[LISTENER])
        take_from_listener(s, s->ways.listen_fd);
    if (events[ABSTRACT])
        take_from_listener(s, s->ways.abstract_fd);
    if (events[DOOR])
        take_client(s, take_from_door(s->ways.door_fd));
    close_the_late(s);
    tell_gone(s);
    return 0;
}

long pb_server_room(const struct pb_server *s, pb_client_id client)
{
    const struct pb_server_client *c = find_client(s, client);
    return c ? (long)(OUT_SIZE - c->out_len) : -ENOENT;
}

int pb_server_send(struct pb_server *s, pb_client_id client, const void *frame, size_t size)
{
    struct pb_server_client *c = find_client(s, client);
    if (!c)
        return -ENOENT;
    if (OUT_SIZE - c->out_len < size)
        return -EAGAIN;
    memcpy(c->out + c->out_len, frame, size);
    c->out_len += size;
    flush(c);
    return 0;
}

/* A short answer for which there is always room, unless the client stopped reading: then it is closed. */
static int send_short(struct pb_server *s, pb_client_id client, struct pb_frame_writer *w, uint16_t type,
                      uint32_t id)
{
    int size = pb_frame_end(w, type, id);
    int r = size < 0 ? size : pb_server_send(s, client, w->buf, (size_t)size);
    if (r == -EAGAIN)
        drop_client(find_client(s, client));
    return r;
}

int pb_server_send_error(struct pb_server *s, pb_client_id client, uint32_t request, int error,
                         const char *text)
{
    uint8_t buf[1024];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_ERRNO, (uint64_t)(error < 0 ? -error : error));
    pb_frame_put(&w, PB_TAG_TEXT, text, strnlen(text, 900));
    return send_short(s, client, &w, PB_MSG_ERROR, request);
}

int pb_server_send_done(struct pb_server *s, pb_client_id client, uint32_t request, int status)
{
    uint8_t buf[64];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_STATUS, (uint64_t)status);
    return send_short(s, client, &w, PB_MSG_DONE, request);
}

int pb_server_send_value(struct pb_server *s, pb_client_id client, uint32_t request, uint64_t value)
{
    uint8_t buf[64];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, value);
    return send_short(s, client, &w, PB_MSG_DONE, request);
}

/* Sends as much of the frame as possible, with the descriptor beside its first byte. */
static ssize_t send_with_fd(int to, const uint8_t *frame, size_t size, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {(void *)(uintptr_t)frame, size};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t n;

    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    do
        n = sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

int pb_server_send_fd(struct pb_server *s, pb_client_id client, uint32_t request, int fd)
{
    struct pb_server_client *c = find_client(s, client);
    uint8_t buf[64];
    struct pb_frame_writer w;

    if (!c)
        return -ENOENT;
    if (c->out_len > 0)
        return -EAGAIN;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_STATUS, 0);
    int size = pb_frame_end(&w, PB_MSG_DONE, request);
    if (size < 0)
        return size;
    ssize_t n = send_with_fd(c->fd, buf, (size_t)size, fd);
    if (n < 0 && n != -EAGAIN)
        drop_client(c);
    if (n < 0)
        return n == -EAGAIN ? -EAGAIN : -ENOENT;
    return n < size ? pb_server_send(s, client, buf + n, (size_t)(size - n)) : 0;
}
