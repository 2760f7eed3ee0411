/* channel_listen: channels of plain bytes: TCP connections to addresses that the resident thread listens at,
 * for clients without frames (nc, telnet, a debugger). At a loopback address only processes of this user and
 * root are accepted, as at the control socket; at others the Python part asks for a token. Everything here
 * runs in the resident thread, and nothing waits. */
#include "agent/channel/channel_impl.h"
#include "agent/core/agent_clock.h"
#include "agent/core/fds.h"
#include "agent/core/lock.h"
#include "agent/core/small_files.h"
#include "table/pages.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG     8
#define PAUSE_NS    PB_NS_PER_S        /* when descriptors run out a connection stays pending this long */
#define DRAINED     64                 /* buffers read from a connection before it is closed */
#define FIRST_NS    (PB_NS_PER_S / 20) /* a client that is exiting has exited by then */
#define LOOK_NS     (2 * PB_NS_PER_S)
#define INTERRUPT   0x03
#define TELNET_IAC  0xff
#define TELNET_IP   0xf4
#define TELNET_SB   0xfa /* a list follows, up to IAC SE */
#define TELNET_WILL 0xfb /* this one and those up to DONT are followed by an option */
#define TELNET_DONT 0xfe
#define GIL_MS      10000

enum { TELNET_NONE, TELNET_COMMAND, TELNET_OPTION, TELNET_LIST };

static struct channel_listener {
    uint64_t number; /* 0: a free place */
    int fd;
    int mode;
    int loopback;
    char kind[PB_CHANNEL_KIND];
    uint8_t *arguments;
    size_t size;
    uint64_t again_ns; /* not accepting before this */
} listeners[PB_CHANNEL_LISTENERS];
static uint64_t next_listener = 1;

union listen_address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

static int parse_address(const struct pb_channel_listen *how, union listen_address *ret, socklen_t *ret_size)
{
    memset(ret, 0, sizeof(*ret));
    if (inet_pton(AF_INET, how->address, &ret->four.sin_addr) == 1) {
        ret->four.sin_family = AF_INET;
        ret->four.sin_port = htons(how->port);
        *ret_size = sizeof(ret->four);
        return 0;
    }
    if (inet_pton(AF_INET6, how->address, &ret->six.sin6_addr) == 1) {
        ret->six.sin6_family = AF_INET6;
        ret->six.sin6_port = htons(how->port);
        *ret_size = sizeof(ret->six);
        return 0;
    }
    return -EINVAL;
}

static int is_loopback(const union listen_address *a)
{
    return a->any.sa_family == AF_INET ? ntohl(a->four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                       : IN6_IS_ADDR_LOOPBACK(&a->six.sin6_addr);
}

/* An address in the form of the kernel's list: words in this machine's byte order, in hexadecimal. */
static void list_address(const union listen_address *a, char ret[40])
{
    uint32_t words[4];

    if (a->any.sa_family == AF_INET) {
        snprintf(ret, 40, "%08X", a->four.sin_addr.s_addr);
        return;
    }
    memcpy(words, &a->six.sin6_addr, sizeof(words));
    snprintf(ret, 40, "%08X%08X%08X%08X", words[0], words[1], words[2], words[3]);
}

/* The owner of the socket at the other end of a loopback connection, from the kernel's list. -ENOENT: not
 * listed, or no process has it any more. A closed socket is listed for a while without an inode and as
 * root's, whoever owned it. */
static int find_peer_owner(const union listen_address *own, const union listen_address *peer,
                           unsigned *ret_uid)
{
    int six = peer->any.sa_family == AF_INET6, found = 0;
    unsigned port = ntohs(six ? own->six.sin6_port : own->four.sin_port);
    unsigned peer_port = ntohs(six ? peer->six.sin6_port : peer->four.sin_port);
    char address[40], peer_address[40], local[40], remote[40];
    unsigned local_port, remote_port, uid = 0;
    unsigned long inode = 0;
    struct pb_block list;

    list_address(own, address);
    list_address(peer, peer_address);
    pb_file_slurp(six ? "/proc/thread-self/net/tcp6" : "/proc/thread-self/net/tcp", &list);
    if (!list.size) /* Linux before 3.17 */
        pb_file_slurp(six ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", &list);
    for (const char *line = list.data; line && !found; line = strchr(line, '\n')) {
        line += *line == '\n';
        found = sscanf(line, " %*d: %39[0-9A-F]:%x %39[0-9A-F]:%x %*x %*x:%*x %*x:%*x %*x %u %*d %lu", local,
                       &local_port, remote, &remote_port, &uid, &inode) == 6 &&
                strcmp(local, peer_address) == 0 && local_port == peer_port && strcmp(remote, address) == 0 &&
                remote_port == port;
    }
    pb_block_done(&list);
    if (!found || inode == 0)
        return -ENOENT;
    *ret_uid = uid;
    return 0;
}

/* Both ends of a connection, if it is over loopback. */
static int find_loopback_ends(int fd, union listen_address *ret_own, union listen_address *ret_peer)
{
    socklen_t own_size = sizeof(*ret_own), peer_size = sizeof(*ret_peer);

    memset(ret_own, 0, sizeof(*ret_own));
    memset(ret_peer, 0, sizeof(*ret_peer));
    return getsockname(fd, &ret_own->any, &own_size) == 0 &&
           getpeername(fd, &ret_peer->any, &peer_size) == 0 && is_loopback(ret_own) && is_loopback(ret_peer);
}

/* At a loopback address this user and root are accepted. */
static int peer_allowed(int fd)
{
    union listen_address own, peer;
    unsigned uid;

    return find_loopback_ends(fd, &own, &peer) && find_peer_owner(&own, &peer, &uid) == 0 &&
           (uid == geteuid() || uid == 0);
}

void pb_channel_look_for_client(struct pb_channel *c)
{
    union listen_address own, peer;
    unsigned uid;

    c->look_ns = 0;
    if (!find_loopback_ends(c->fd, &own, &peer))
        return;
    if (find_peer_owner(&own, &peer, &uid) == 0) {
        c->look_ns = pb_now_ns() + LOOK_NS;
        return;
    }
    pb_lock(PB_LOCK_CHANNELS);
    pb_channel_lose(c, "the client is gone");
    pb_unlock(PB_LOCK_CHANNELS);
}

static int open_listener(const union listen_address *address, socklen_t size, uint16_t *ret_port)
{
    union listen_address bound;
    socklen_t bound_size = sizeof(bound);
    const int on = 1;

    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, &address->any, size) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, &bound.any, &bound_size) < 0) {
        int r = -errno;
        close(fd);
        return r;
    }
    *ret_port = ntohs(bound.any.sa_family == AF_INET6 ? bound.six.sin6_port : bound.four.sin_port);
    return pb_fd_keep(fd);
}

static struct channel_listener *find_free_listener(void)
{
    for (int i = 0; i < PB_CHANNEL_LISTENERS; i++)
        if (!listeners[i].number)
            return &listeners[i];
    return NULL;
}

static int keep_arguments(const struct pb_channel_listen *how, struct channel_listener *l)
{
    if (how->size == 0)
        return 0;
    void *copy = pb_pages_map(how->size);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, how->arguments, how->size);
    l->arguments = copy;
    l->size = how->size;
    return 0;
}

int pb_channel_listen(const struct pb_channel_listen *how, char *why, size_t why_size)
{
    struct channel_listener *l = find_free_listener(), made = {.mode = how->mode};
    union listen_address address;
    socklen_t size;
    uint16_t port = 0;

    if (!l) {
        snprintf(why, why_size, "it listens at %d addresses already; stop one", PB_CHANNEL_LISTENERS);
        return -EBUSY;
    }
    if (parse_address(how, &address, &size) < 0) {
        snprintf(why, why_size, "'%.60s' is no numeric IPv4 or IPv6 address", how->address);
        return -EINVAL;
    }
    int r = pb_fds_room() ? keep_arguments(how, &made) : -EMFILE;
    if (r == 0)
        r = made.fd = open_listener(&address, size, &port);
    if (r < 0) {
        if (made.arguments)
            munmap(made.arguments, made.size);
        snprintf(why, why_size, "it cannot listen at %s port %u: %s", how->address, how->port, strerror(-r));
        return r;
    }
    snprintf(made.kind, sizeof(made.kind), "%s", how->kind);
    made.loopback = is_loopback(&address);
    made.number = next_listener++;
    *l = made;
    return port;
}

static void stop_listener(struct channel_listener *l)
{
    pb_fd_close(l->fd);
    if (l->arguments)
        munmap(l->arguments, l->size);
    *l = (struct channel_listener){.fd = -1};
}

static void end_channels_of(uint64_t listener)
{
    pb_lock(PB_LOCK_CHANNELS);
    for (int i = 0; i < PB_CHANNELS; i++) {
        struct pb_channel *c = &pb_channel_places[i];
        if (c->number && !c->detached && c->listener == listener)
            pb_channel_lose(c, "the process no longer listens at this address");
    }
    pb_unlock(PB_LOCK_CHANNELS);
}

int pb_channel_listen_stop(const char *kind, int channels)
{
    int stopped = 0;

    for (int i = 0; i < PB_CHANNEL_LISTENERS; i++) {
        struct channel_listener *l = &listeners[i];
        if (!l->number || (kind[0] && strcmp(kind, l->kind) != 0))
            continue;
        if (channels)
            end_channels_of(l->number);
        stop_listener(l);
        stopped++;
    }
    return stopped;
}

/* How many bytes can be received at once, and their destination. */
static size_t free_part(struct pb_channel *c, uint8_t **ret)
{
    pb_lock(PB_LOCK_CHANNELS);
    size_t end = (c->in.at + c->in.len) % PB_CHANNEL_WINDOW;
    size_t n = PB_CHANNEL_WINDOW - (end > c->in.len ? end : c->in.len);
    if (c->input_ended || c->closed)
        n = 0;
    *ret = c->in.data + end;
    pb_unlock(PB_LOCK_CHANNELS);
    return n;
}

void pb_channel_poll(struct pollfd *ret)
{
    uint64_t now = pb_now_ns();
    uint8_t *unused;

    for (int i = 0; i < PB_CHANNELS; i++) {
        struct pb_channel *c = &pb_channel_places[i];
        ret[i] = (struct pollfd){.fd = -1};
        pb_lock(PB_LOCK_CHANNELS);
        int ours = c->number && !c->detached && !c->client;
        size_t out = ours ? c->out.len : 0;
        pb_unlock(PB_LOCK_CHANNELS);
        if (ours)
            ret[i] = (struct pollfd){
                .fd = c->fd, .events = (short)((free_part(c, &unused) ? POLLIN : 0) | (out ? POLLOUT : 0))};
    }
    for (int i = 0; i < PB_CHANNEL_LISTENERS; i++)
        ret[PB_CHANNELS + i] =
            (struct pollfd){.fd = listeners[i].number && now >= listeners[i].again_ns ? listeners[i].fd : -1,
                            .events = POLLIN};
}

/* Removes interrupts and telnet commands from text. Returns the remaining length; *interrupts: how many came.
 * Text (UTF-8) never contains 0xff. */
static size_t filter_text(struct pb_channel *c, uint8_t *bytes, size_t size, int *interrupts)
{
    size_t kept = 0;

    *interrupts = 0;
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = bytes[i];
        if (byte == TELNET_IAC) {
            c->telnet = TELNET_COMMAND;
        } else if (c->telnet == TELNET_COMMAND) {
            *interrupts += byte == TELNET_IP;
            c->telnet = byte == TELNET_SB                            ? TELNET_LIST
                        : byte >= TELNET_WILL && byte <= TELNET_DONT ? TELNET_OPTION
                                                                     : TELNET_NONE;
        } else if (c->telnet == TELNET_OPTION) {
            c->telnet = TELNET_NONE;
        } else if (c->telnet == TELNET_LIST) {
            continue;
        } else if (byte == INTERRUPT) {
            ++*interrupts;
        } else {
            bytes[kept++] = byte;
        }
    }
    return kept;
}

static void receive_plain(struct pb_channel *c)
{
    uint8_t *bytes;
    size_t room = free_part(c, &bytes);
    int interrupts = 0;

    if (room == 0)
        return;
    ssize_t n = recv(c->fd, bytes, room, MSG_DONTWAIT);
    int lost = n < 0 && errno != EAGAIN && errno != EINTR, ended = n == 0;
    if (n > 0 && c->mode == PB_LISTEN_TEXT)
        n = (ssize_t)filter_text(c, bytes, (size_t)n, &interrupts);
    pb_lock(PB_LOCK_CHANNELS);
    if (n > 0)
        c->in.len += (size_t)n;
    if (interrupts)
        pb_channel_interrupt(c);
    if (ended) {
        c->input_ended = 1;
        c->look_ns = pb_now_ns() + FIRST_NS;
    }
    if (lost)
        pb_channel_lose(c, "the client is gone");
    pb_channel_ring_bell(c);
    pb_unlock(PB_LOCK_CHANNELS);
}

/* A client on another machine that is gone looks like one that ended its input. TCP keepalive finds it within
 * a minute or so (net.ipv4.tcp_fin_timeout), also for code that never writes. A client on this machine is
 * checked by pb_channel_look_for_client. */
static void watch_peer(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 10},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 10},
                   {IPPROTO_TCP, TCP_KEEPCNT, 3},
                   {IPPROTO_TCP, TCP_NODELAY, 1}}; /* answers are short: a person waits for each */

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

static void accept_client(struct channel_listener *l)
{
    char why[200];

    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            l->again_ns = pb_now_ns() + PAUSE_NS;
        return;
    }
    if (!pb_fds_room() || (l->loopback && !peer_allowed(fd))) {
        close(fd);
        return;
    }
    watch_peer(fd);
    fd = pb_fd_keep(fd);
    const struct pb_channel_request request = {.fd = fd,
                                               .listener = l->number,
                                               .mode = l->mode,
                                               .timeout_ms = GIL_MS,
                                               .kind = l->kind,
                                               .arguments = l->arguments,
                                               .size = l->size};
    if (fd >= 0 && pb_channel_open(&request, why, sizeof(why)) < 0)
        pb_fd_close(fd);
}

void pb_channel_read_events(const struct pollfd *polled)
{
    for (int i = 0; i < PB_CHANNELS; i++) {
        struct pb_channel *c = &pb_channel_places[i];
        pb_lock(PB_LOCK_CHANNELS);
        int same = c->number && !c->detached && !c->client && polled[i].fd >= 0 && polled[i].fd == c->fd;
        pb_unlock(PB_LOCK_CHANNELS);
        if (same && polled[i].revents & POLLIN)
            receive_plain(c);
        if (same && polled[i].revents & (POLLERR | POLLHUP | POLLNVAL)) {
            pb_lock(PB_LOCK_CHANNELS);
            pb_channel_lose(c, "the client is gone");
            pb_unlock(PB_LOCK_CHANNELS);
        }
    }
    for (int i = 0; i < PB_CHANNEL_LISTENERS; i++) {
        const struct pollfd *p = &polled[PB_CHANNELS + i];
        if (listeners[i].number && p->fd >= 0 && p->fd == listeners[i].fd && p->revents & POLLIN)
            accept_client(&listeners[i]);
        else if (listeners[i].number && p->fd == listeners[i].fd && p->revents)
            stop_listener(&listeners[i]); /* broken: polling it again would return at once, for ever */
    }
}

void pb_channel_drain(int fd)
{
    char bytes[1024];

    for (int i = 0; i < DRAINED && recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0; i++)
        ;
}

/* pb_locks_forget resets the lock, pb_fds_forget the descriptors. The rings do not reach a child; arguments
 * of listeners stay. */
void pb_channels_forget(void)
{
    memset(pb_channel_places, 0, sizeof(pb_channel_places));
    for (int i = 0; i < PB_CHANNELS; i++)
        pb_channel_places[i].fd = -1;
    for (int i = 0; i < PB_CHANNEL_LISTENERS; i++)
        listeners[i] = (struct channel_listener){.fd = -1};
}
