/* server: see server.h. */
#include "agent/server.h"

#include "agent/clock.h"
#include "control/message.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define IN_SIZE       (PB_FRAME_HEADER + PB_FRAME_MAX_PAYLOAD)
#define OUT_SIZE      (256u << 10)
#define HELLO_TIME_NS (5ull * PB_NS_PER_S)

#define LISTEN_PAUSE_NS PB_NS_PER_S

enum { LISTENER = PB_SERVER_CLIENTS, DOOR, WAKER, OTHER, SOURCES };
_Static_assert(sizeof(((struct pb_server *)0)->events) / sizeof(struct epoll_event) >= SOURCES,
               "room for all");

static int watch(struct pb_server *s, int op, int fd, uint32_t events, uint64_t what)
{
    struct epoll_event event = {.events = events, .data.u64 = what};
    return epoll_ctl(s->epoll_fd, op, fd, &event) < 0 ? -errno : 0;
}

int pb_server_init(struct pb_server *s, int listen_fd, int door_fd)
{
    s->listen_fd = listen_fd;
    s->door_fd = door_fd;
    s->next_id = 1;
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = s->epoll_fd < 0 || s->wake_fd < 0 ? -errno : 0;
    if (r == 0 && listen_fd >= 0)
        r = watch(s, EPOLL_CTL_ADD, listen_fd, EPOLLIN, LISTENER);
    if (r == 0)
        r = watch(s, EPOLL_CTL_ADD, door_fd, EPOLLIN, DOOR);
    if (r == 0)
        r = watch(s, EPOLL_CTL_ADD, s->wake_fd, EPOLLIN, WAKER);
    if (r < 0) {
        if (s->epoll_fd >= 0)
            close(s->epoll_fd);
        if (s->wake_fd >= 0)
            close(s->wake_fd);
    }
    return r;
}

int pb_server_watch(struct pb_server *s, int fd)
{
    return watch(s, EPOLL_CTL_ADD, fd, EPOLLIN, OTHER);
}

static void drop(struct pb_server *s, struct pb_server_client *c)
{
    pb_client_id id = c->id;

    close(c->fd);
    munmap(c->in, IN_SIZE);
    munmap(c->out, OUT_SIZE);
    *c = (struct pb_server_client){.fd = -1};
    if (s->gone)
        s->gone(s->owner, id);
}

static void flush(struct pb_server *s, struct pb_server_client *c)
{
    while (c->out_len > 0) {
        ssize_t n = send(c->fd, c->out, c->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            drop(s, c);
            return;
        }
        memmove(c->out, c->out + n, c->out_len - (size_t)n);
        c->out_len -= (size_t)n;
    }
    if (c->closing && c->out_len == 0) {
        drop(s, c);
        return;
    }
    watch(s, EPOLL_CTL_MOD, c->fd, EPOLLIN | (c->out_len ? EPOLLOUT : 0), (uint64_t)(c - s->clients));
}

void pb_server_done(struct pb_server *s)
{
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (s->clients[i].id) {
            s->clients[i].closing = 1;
            flush(s, &s->clients[i]);
            if (s->clients[i].id)
                drop(s, &s->clients[i]);
        }
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    close(s->door_fd);
    close(s->epoll_fd);
    close(s->wake_fd);
    s->listen_fd = s->door_fd = s->epoll_fd = s->wake_fd = -1;
}

/* Only the owner of the process and root may speak to it; the secret, which only they can read, is asked for
 * next. */
static int peer_allowed(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

/* The descriptor in a message that came through the door, or -1. */
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

static void take_client(struct pb_server *s, int fd)
{
    if (fd < 0)
        return;
    struct pb_server_client *c = NULL;
    for (int i = 0; i < PB_SERVER_CLIENTS && !c; i++)
        if (!s->clients[i].id)
            c = &s->clients[i];
    if (!c || !peer_allowed(fd)) {
        close(fd);
        return;
    }
    void *in = mmap(NULL, IN_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *out = mmap(NULL, OUT_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (in == MAP_FAILED || out == MAP_FAILED ||
        watch(s, EPOLL_CTL_ADD, fd, EPOLLIN, (uint64_t)(c - s->clients)) < 0) {
        if (in != MAP_FAILED)
            munmap(in, IN_SIZE);
        if (out != MAP_FAILED)
            munmap(out, OUT_SIZE);
        close(fd);
        return;
    }
    *c = (struct pb_server_client){
        .id = s->next_id++, .fd = fd, .in = in, .out = out, .deadline_ns = pb_now_ns() + HELLO_TIME_NS};
}

/* Hands over the whole frames that are there. -EBADMSG and the like: this client is to be closed. */
static int take_frames(struct pb_server *s, struct pb_server_client *c)
{
    struct pb_frame frame;
    pb_client_id id = c->id;
    size_t used = 0;
    int n;

    while ((n = pb_frame_parse(c->in + used, c->in_len - used, &frame)) > 0) {
        if (!c->greeted && frame.type != PB_MSG_HELLO)
            return -EACCES;
        s->handle(s->owner, s, c, &frame);
        if (c->id != id) /* closed by what the handler sent */
            return 0;
        used += (size_t)n;
    }
    memmove(c->in, c->in + used, c->in_len - used);
    c->in_len -= used;
    return n;
}

static void read_client(struct pb_server *s, struct pb_server_client *c)
{
    ssize_t n = recv(c->fd, c->in + c->in_len, IN_SIZE - c->in_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(s, c);
        return;
    }
    c->in_len += (size_t)n;
    if (take_frames(s, c) < 0)
        drop(s, c);
}

static void close_the_silent(struct pb_server *s)
{
    uint64_t now = pb_now_ns();

    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (s->clients[i].id && !s->clients[i].greeted && now > s->clients[i].deadline_ns)
            drop(s, &s->clients[i]);
}

/* Out of descriptors, a connection stays pending and would wake us again and again. */
static void take_from_listener(struct pb_server *s)
{
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
        watch(s, EPOLL_CTL_MOD, s->listen_fd, 0, LISTENER);
        s->listen_again_ns = pb_now_ns() + LISTEN_PAUSE_NS;
    }
    take_client(s, fd);
}

static void listen_again(struct pb_server *s)
{
    if (s->listen_again_ns && pb_now_ns() >= s->listen_again_ns) {
        s->listen_again_ns = 0;
        watch(s, EPOLL_CTL_MOD, s->listen_fd, EPOLLIN, LISTENER);
    }
}

void pb_server_wait(struct pb_server *s, int timeout_ms)
{
    s->nevents = epoll_wait(s->epoll_fd, s->events, SOURCES, timeout_ms);
}

void pb_server_deal(struct pb_server *s)
{
    uint64_t ignored;

    for (int i = 0; i < s->nevents; i++) {
        uint64_t what = s->events[i].data.u64;
        uint32_t events = s->events[i].events;
        if (what == LISTENER) {
            take_from_listener(s);
        } else if (what == DOOR) {
            take_client(s, take_from_door(s->door_fd));
        } else if (what == WAKER) {
            while (read(s->wake_fd, &ignored, sizeof(ignored)) > 0)
                ;
        } else if (what < PB_SERVER_CLIENTS) {
            struct pb_server_client *c = &s->clients[what];
            if (c->id && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                read_client(s, c);
            if (c->id && events & EPOLLOUT)
                flush(s, c);
        }
    }
    s->nevents = 0;
    close_the_silent(s);
    listen_again(s);
}

void pb_server_wake(struct pb_server *s)
{
    uint64_t one = 1;
    int saved = errno;
    ssize_t n = write(s->wake_fd, &one, sizeof(one)); /* a full counter wakes as well */
    (void)n;
    errno = saved;
}

static struct pb_server_client *find(const struct pb_server *s, pb_client_id client)
{
    for (int i = 0; i < PB_SERVER_CLIENTS; i++)
        if (client && s->clients[i].id == client)
            return (struct pb_server_client *)&s->clients[i];
    return NULL;
}

long pb_server_room(const struct pb_server *s, pb_client_id client)
{
    const struct pb_server_client *c = find(s, client);
    return c ? (long)(OUT_SIZE - c->out_len) : -ENOENT;
}

int pb_server_send(struct pb_server *s, pb_client_id client, const void *frame, size_t size)
{
    struct pb_server_client *c = find(s, client);
    if (!c)
        return -ENOENT;
    if (OUT_SIZE - c->out_len < size)
        return -EAGAIN;
    memcpy(c->out + c->out_len, frame, size);
    c->out_len += size;
    flush(s, c);
    return 0;
}

/* A short answer for which there is always room, unless the client stopped reading: then it is closed. */
static int send_short(struct pb_server *s, pb_client_id client, struct pb_frame_writer *w, uint16_t type,
                      uint32_t id)
{
    int size = pb_frame_end(w, type, id);
    int r = size < 0 ? size : pb_server_send(s, client, w->buf, (size_t)size);
    if (r == -EAGAIN)
        drop(s, find(s, client));
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

/* Sends what it can of the frame, with the descriptor beside its first byte. */
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
    struct pb_server_client *c = find(s, client);
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
        drop(s, c);
    if (n < 0)
        return n == -EAGAIN ? -EAGAIN : -ENOENT;
    return n < size ? pb_server_send(s, client, buf + n, (size_t)(size - n)) : 0;
}
