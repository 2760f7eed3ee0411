/* channel_serve: the resident thread's part of channels (channel.h): opening, frames of clients, moving bytes
 * from the rings to the sockets, ends. Nothing here waits, and nothing is sent with the lock held. */
#include "agent/channel/channel_impl.h"
#include "agent/core/agent_clock.h"
#include "agent/core/fds.h"
#include "agent/core/lock.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "agent/python/gil.h"
#include "table/pages.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define MOVED    (16u << 10) /* bytes in one frame */
#define FRAMES   16          /* per channel and turn, so that other channels get their turn */
#define RESERVED 4096        /* of a client's queue, for WINDOW and END */
#define CREDIT   (1ull << 30)

static void *(*thread_function)(void *);
static uint64_t next_number = 1;

void pb_channels_begin(void *(*thread)(void *))
{
    thread_function = thread;
    for (int i = 0; i < PB_CHANNELS; i++)
        if (!pb_channel_places[i].number)
            pb_channel_places[i].fd = -1;
}

static void could_not_start(void *number, int error)
{
    char why[128];

    snprintf(why, sizeof(why), "the process cannot start a thread: %s", strerror(-error));
    pb_channel_thread_end((uintptr_t)number, 1, why);
}

/* Maps the two rings and the arguments. */
static int map_memory(const struct pb_channel_request *request, struct pb_channel *ret)
{
    size_t size = 2 * (size_t)PB_CHANNEL_WINDOW + request->size;
    uint8_t *mapped = pb_pages_map(size);

    if (!mapped)
        return -ENOMEM;
    (void)madvise(mapped, size, MADV_DONTFORK); /* a child of fork does not need it */
    if (request->size)
        memcpy(mapped + 2 * (size_t)PB_CHANNEL_WINDOW, request->arguments, request->size);
    ret->mapped = mapped;
    ret->mapped_size = size;
    ret->arguments_size = request->size;
    ret->in.data = mapped;
    ret->out.data = mapped + PB_CHANNEL_WINDOW;
    return 0;
}

static int take_place(const struct pb_channel *c)
{
    int place = 0;

    pb_lock(PB_LOCK_CHANNELS);
    while (place < PB_CHANNELS && pb_channel_places[place].number)
        place++;
    if (place < PB_CHANNELS)
        pb_channel_places[place] = *c;
    pb_unlock(PB_LOCK_CHANNELS);
    return place < PB_CHANNELS ? place : -EBUSY;
}

int pb_channel_open(const struct pb_channel_request *request, char *why, size_t why_size)
{
    struct pb_channel c = {
        .number = next_number++,
        .client = request->client,
        .fd = request->client ? -1 : request->fd,
        .request = request->request,
        .listener = request->listener,
        .mode = request->mode,
        .granted = PB_CHANNEL_WINDOW,
        .credit = PB_CHANNEL_WINDOW,
        .timeout_ms = request->timeout_ms,
        .begin_by_ns = request->timeout_ms ? pb_now_ns() + request->timeout_ms * PB_NS_PER_MS : 0,
    };

    snprintf(c.kind, sizeof(c.kind), "%s", request->kind);
    if (map_memory(request, &c) < 0) {
        snprintf(why, why_size, "out of memory");
        return -ENOMEM;
    }
    pb_thread_read_host_signals();
    int place = take_place(&c);
    if (place < 0)
        snprintf(why, why_size, "%d channels are open already; close one", PB_CHANNELS);
    int r = place < 0 ? place : pb_spawn(thread_function, could_not_start, (void *)(uintptr_t)c.number);
    if (r < 0 && place >= 0) {
        snprintf(why, why_size, "too many threads wait to be started: %s", strerror(-r));
        pb_lock(PB_LOCK_CHANNELS);
        pb_channel_places[place] = (struct pb_channel){.fd = -1};
        pb_unlock(PB_LOCK_CHANNELS);
    }
    if (r < 0)
        munmap(c.mapped, c.mapped_size);
    return r;
}

/* The caller must hold the lock. */
static struct pb_channel *find_by_client(pb_client_id client)
{
    for (int i = 0; i < PB_CHANNELS; i++)
        if (client && pb_channel_places[i].number && pb_channel_places[i].client == client &&
            !pb_channel_places[i].detached)
            return &pb_channel_places[i];
    return NULL;
}

int pb_channel_is(pb_client_id client)
{
    pb_lock(PB_LOCK_CHANNELS);
    int is = find_by_client(client) != NULL;
    pb_unlock(PB_LOCK_CHANNELS);
    return is;
}

/* Copies a client's bytes into the free part of the ring, up to the granted number. */
static int take_bytes(struct pb_channel *c, const struct pb_field *data)
{
    if (c->input_ended || data->size > c->granted)
        return -EPROTO;
    c->granted -= data->size;
    if (c->closed) { /* its thread does not read them any more */
        c->consumed += data->size;
        return 0;
    }
    for (size_t done = 0; done < data->size;) {
        size_t end = (c->in.at + c->in.len) % PB_CHANNEL_WINDOW, n = PB_CHANNEL_WINDOW - end;
        n = n < data->size - done ? n : data->size - done;
        memcpy(c->in.data + end, data->data + done, n);
        c->in.len += n;
        done += n;
    }
    pb_channel_ring_bell(c);
    return 0;
}

/* The caller must hold the lock. */
static int handle_frame(struct pb_channel *c, const struct pb_frame *frame)
{
    struct pb_field data;
    uint64_t more;

    switch (frame->type) {
    case PB_MSG_STREAM:
        return pb_field_find(frame, PB_TAG_DATA, &data) < 0 ? -EPROTO : take_bytes(c, &data);
    case PB_MSG_WINDOW:
        more = pb_field_u64(frame, PB_TAG_VALUE, 0);
        if (more > CREDIT - c->credit)
            return -EPROTO;
        c->credit += more;
        return 0;
    case PB_MSG_INTERRUPT:
        pb_channel_interrupt(c);
        return 0;
    case PB_MSG_END:
        c->input_ended = 1;
        pb_channel_ring_bell(c);
        return 0;
    default:
        return -EPROTO;
    }
}

int pb_channel_frame(pb_client_id client, const struct pb_frame *frame)
{
    pb_lock(PB_LOCK_CHANNELS);
    struct pb_channel *c = find_by_client(client);
    int r = c && frame->id == c->request ? handle_frame(c, frame) : -EPROTO;
    pb_unlock(PB_LOCK_CHANNELS);
    return r;
}

/* Releases a channel whose connection is closed, for the resident thread. */
static void release_channel(struct pb_channel *c, const char *why)
{
    pb_lock(PB_LOCK_CHANNELS);
    pb_channel_lose(c, why);
    c->detached = 1;
    struct pb_channel_memory memory = pb_channel_take_ended(c);
    pb_unlock(PB_LOCK_CHANNELS);
    pb_channel_discard(memory);
}

void pb_channel_gone(pb_client_id client)
{
    pb_lock(PB_LOCK_CHANNELS);
    struct pb_channel *c = find_by_client(client);
    pb_unlock(PB_LOCK_CHANNELS);
    if (c) /* its place cannot be reused meanwhile: only this thread assigns places */
        release_channel(c, "the client is gone");
}

/* Collected under the lock, done by the resident thread after it. */
struct channel_work {
    const uint8_t *data; /* in the output ring: stays valid without the lock */
    size_t size;
    uint64_t grant; /* bytes of a WINDOW */
    int ends;       /* everything was sent, or the client does not read it */
    int late;       /* the GIL was not available in time */
    uint64_t next_ns;
    int status;
    char reason[200];
};

static void collect_work(struct pb_channel *c, struct channel_work *ret)
{
    uint64_t now = pb_now_ns();

    *ret = (struct channel_work){0};
    pb_lock(PB_LOCK_CHANNELS);
    size_t n = PB_CHANNEL_WINDOW - c->out.at;
    n = n < c->out.len ? n : c->out.len;
    n = n < MOVED ? n : MOVED;
    if (c->client && n > c->credit)
        n = c->credit;
    ret->data = c->out.data + c->out.at;
    ret->size = c->gone ? 0 : n;
    if (c->client && c->consumed >= PB_CHANNEL_WINDOW / 2 && !c->input_ended) {
        ret->grant = c->consumed;
        c->granted += c->consumed;
        c->consumed = 0;
    }
    if (!c->client) /* received whenever there is room */
        c->consumed = 0;
    ret->late = !c->has_gil && !c->closed && !c->gone && c->begin_by_ns && now >= c->begin_by_ns;
    ret->ends = c->gone || (c->closed && (c->out.len == 0 || now >= c->end_by_ns));
    ret->next_ns = c->closed ? c->end_by_ns : !c->has_gil ? c->begin_by_ns : 0;
    ret->status = c->status;
    memcpy(ret->reason, c->reason, sizeof(ret->reason));
    pb_unlock(PB_LOCK_CHANNELS);
}

static void took(struct pb_channel *c, size_t n)
{
    pb_lock(PB_LOCK_CHANNELS);
    c->out.at = (c->out.at + n) % PB_CHANNEL_WINDOW;
    c->out.len -= n;
    if (c->client)
        c->credit -= n;
    pb_channel_ring_bell(c);
    pb_unlock(PB_LOCK_CHANNELS);
}

static void send_window(struct pb_server *s, const struct pb_channel *c, uint64_t value)
{
    uint8_t buf[64];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, value);
    pb_server_send(s, c->client, buf, (size_t)pb_frame_end(&w, PB_MSG_WINDOW, c->request));
}

static void send_end(struct pb_server *s, const struct pb_channel *c, int status, const char *reason)
{
    uint8_t buf[512];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_STATUS, (uint64_t)status);
    pb_frame_put_str(&w, PB_TAG_TEXT, reason);
    pb_server_send(s, c->client, buf, (size_t)pb_frame_end(&w, PB_MSG_END, c->request));
    pb_server_close_client(s, c->client, PB_CHANNEL_LINGER_MS);
}

/* Returns how many bytes were sent. */
static size_t send_frame(struct pb_server *s, const struct pb_channel *c, const struct channel_work *work)
{
    static uint8_t buf[MOVED + 64]; /* the resident thread's */
    struct pb_frame_writer w;

    if (pb_server_room(s, c->client) < (long)(work->size + 64 + RESERVED))
        return 0;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put(&w, PB_TAG_DATA, work->data, work->size);
    int size = pb_frame_end(&w, PB_MSG_STREAM, c->request);
    return size > 0 && pb_server_send(s, c->client, buf, (size_t)size) == 0 ? work->size : 0;
}

static size_t send_plain(const struct pb_channel *c, const struct channel_work *work, int *gone)
{
    ssize_t n = send(c->fd, work->data, work->size, MSG_DONTWAIT | MSG_NOSIGNAL);

    *gone = n < 0 && errno != EAGAIN && errno != EINTR;
    return n > 0 ? (size_t)n : 0;
}

static void end_channel(struct pb_server *s, struct pb_channel *c, const struct channel_work *work)
{
    if (c->client && pb_server_room(s, c->client) >= 0)
        send_end(s, c, work->status, work->reason);
    if (c->fd >= 0) {
        pb_channel_drain(c->fd);
        pb_fd_close(c->fd);
        c->fd = -1;
    }
    release_channel(c, work->reason);
}

/* The GIL was not available in time: closes the channel with a reason. Its thread, which still waits for the
 * GIL, finds it closed then. */
static void close_without_gil(struct pb_channel *c)
{
    char why[200];

    pb_gil_say_why(c->timeout_ms, why, sizeof(why));
    pb_channel_close(c->number, 1, why);
}

/* Returns when the channel needs its next turn, 0: no particular time. */
static uint64_t serve_turn(struct pb_server *s, struct pb_channel *c)
{
    struct channel_work work;
    int gone = 0, frames = 0;

    if (c->look_ns && pb_now_ns() >= c->look_ns)
        pb_channel_look_for_client(c);
    for (;; frames++) {
        collect_work(c, &work);
        if (work.grant)
            send_window(s, c, work.grant);
        if (work.late) {
            close_without_gil(c);
            continue;
        }
        if (work.size == 0 || frames == FRAMES)
            break;
        size_t n = c->client ? send_frame(s, c, &work) : send_plain(c, &work, &gone);
        if (n == 0)
            break;
        took(c, n);
    }
    if (gone)
        snprintf(work.reason, sizeof(work.reason), "the client is gone");
    if (work.ends || gone) {
        end_channel(s, c, &work);
        return 0;
    }
    if (c->look_ns && (!work.next_ns || c->look_ns < work.next_ns))
        work.next_ns = c->look_ns;
    return frames == FRAMES ? pb_now_ns() : work.next_ns;
}

int pb_channel_turn(struct pb_server *server)
{
    uint64_t now = pb_now_ns(), soonest = 0;

    for (int i = 0; i < PB_CHANNELS; i++) {
        struct pb_channel *c = &pb_channel_places[i];
        pb_lock(PB_LOCK_CHANNELS);
        int ours = c->number && !c->detached;
        pb_unlock(PB_LOCK_CHANNELS);
        uint64_t next = ours ? serve_turn(server, c) : 0;
        if (next && (!soonest || next < soonest))
            soonest = next;
    }
    return soonest ? soonest <= now ? 0 : (int)((soonest - now) / PB_NS_PER_MS) + 1 : -1;
}

void pb_channels_end(struct pb_server *server, const char *reason)
{
    struct channel_work work = {.status = 1};

    pb_channel_listen_stop("", 0);
    snprintf(work.reason, sizeof(work.reason), "%s", reason);
    for (int i = 0; i < PB_CHANNELS; i++) {
        struct pb_channel *c = &pb_channel_places[i];
        pb_lock(PB_LOCK_CHANNELS);
        int ours = c->number && !c->detached;
        pb_unlock(PB_LOCK_CHANNELS);
        if (ours)
            end_channel(server, c, &work);
    }
}
