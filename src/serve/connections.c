/* connections: see connections.h. */
#include "serve/connections.h"

#include "base/time.h"
#include "serve/credentials.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { HEAD_MS = 10000, ROOM = 64 };

struct pb_connection {
    struct pb_connection *next, *before;
    int fd;
    uid_t uid;
    enum pb_connection_state state;
    bool closing;   /* shut down; libmicrohttpd will close it */
    uint64_t since; /* when it entered this state */
};

/* Ordered by the time of the last change of state, newest first. */
struct pb_connections {
    pthread_mutex_t lock;
    struct pb_connection *first, *last;
    unsigned most;
    bool is_unix;
};

struct pb_connections *pb_connections_new(unsigned most, bool is_unix)
{
    struct pb_connections *all = calloc(1, sizeof(*all));

    if (!all)
        return NULL;
    pthread_mutex_init(&all->lock, NULL);
    all->most = most;
    all->is_unix = is_unix;
    return all;
}

void pb_connections_free(struct pb_connections *all)
{
    if (!all)
        return;
    pthread_mutex_destroy(&all->lock);
    free(all);
}

unsigned pb_connections_limit(const struct pb_connections *all)
{
    return all->most + ROOM;
}

/* --- with the lock held --- */

static void add(struct pb_connections *all, struct pb_connection *one)
{
    one->before = NULL;
    one->next = all->first;
    *(all->first ? &all->first->before : &all->last) = one;
    all->first = one;
}

static void take_out(struct pb_connections *all, struct pb_connection *one)
{
    *(one->before ? &one->before->next : &all->first) = one->next;
    *(one->next ? &one->next->before : &all->last) = one->before;
}

static void set_state(struct pb_connections *all, struct pb_connection *one, enum pb_connection_state state)
{
    if (one->state == state)
        return;
    one->state = state;
    one->since = pb_now_ns();
    take_out(all, one);
    add(all, one);
}

static void close_one(struct pb_connection *one)
{
    one->closing = true;
    shutdown(one->fd, SHUT_RDWR);
}

/* A connection of another user replaces one of the same user, whose share is used up; one of the service's
 * own user replaces any. */
static struct pb_connection *find_oldest(struct pb_connections *all, const struct pb_connection *fresh)
{
    for (struct pb_connection *one = all->last; one; one = one->before)
        if (one != fresh && !one->closing && one->state != PB_CONNECTION_BUSY &&
            (!fresh->uid || one->uid == fresh->uid))
            return one;
    return NULL;
}

static void make_room(struct pb_connections *all, struct pb_connection *fresh)
{
    unsigned n = 0, own = 0;

    for (const struct pb_connection *one = all->first; one; one = one->next) {
        n += one != fresh && !one->closing;
        own += one != fresh && !one->closing && one->uid == fresh->uid;
    }
    if (pb_credentials_may_take(fresh->uid, all->most, n, own))
        return;
    struct pb_connection *oldest = find_oldest(all, fresh);
    close_one(oldest ? oldest : fresh);
}

/* --- the listener's side --- */

static void begin(struct pb_connections *all, struct MHD_Connection *c, void **socket_context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pb_connection *one = info ? calloc(1, sizeof(*one)) : NULL;
    struct pb_credentials credentials = {0};

    *socket_context = one;
    if (!one) {
        if (info)
            shutdown(info->connect_fd, SHUT_RDWR);
        return;
    }
    *one = (struct pb_connection){.fd = info->connect_fd, .since = pb_now_ns()};
    if (all->is_unix && pb_credentials_of_peer(one->fd, &credentials))
        one->uid = credentials.uid;
    pthread_mutex_lock(&all->lock);
    add(all, one);
    make_room(all, one);
    pthread_mutex_unlock(&all->lock);
}

void pb_connections_notify(void *cls, struct MHD_Connection *c, void **socket_context,
                           enum MHD_ConnectionNotificationCode code)
{
    struct pb_connections *all = cls;
    struct pb_connection *one = *socket_context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        begin(all, c, socket_context);
        return;
    }
    if (!one)
        return;
    pthread_mutex_lock(&all->lock);
    take_out(all, one);
    pthread_mutex_unlock(&all->lock);
    free(one);
    *socket_context = NULL;
}

void pb_connections_set(struct pb_connections *all, struct MHD_Connection *c, enum pb_connection_state state)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct pb_connection *one = info ? info->socket_context : NULL;

    if (!one)
        return;
    pthread_mutex_lock(&all->lock);
    set_state(all, one, state);
    pthread_mutex_unlock(&all->lock);
}

void pb_connections_sweep(struct pb_connections *all)
{
    pthread_mutex_lock(&all->lock);
    for (struct pb_connection *one = all->last; one; one = one->before) {
        if (pb_now_ns() - one->since < HEAD_MS * PB_NS_PER_MS)
            break;
        if (one->state == PB_CONNECTION_HEAD && !one->closing)
            close_one(one);
    }
    pthread_mutex_unlock(&all->lock);
}
