/* channel: see channel.h. This file has the list of channels and the part of their threads; channel_serve.c
 * has the resident thread's part, channel_listen.c plain bytes.
 *
 * Threads of the program wait for a bell, one word per place that is raised with each change, in memory that
 * is never freed: the channel that they wait for may be gone when they wake. */
#include "agent/channel/channel_impl.h"
#include "agent/core/agent_clock.h"
#include "agent/core/futex.h"
#include "agent/core/lock.h"
#include "agent/core/spawn.h"
#include "agent/core/wake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK (16u << 10) /* copied under the lock at a time */

struct pb_channel pb_channel_places[PB_CHANNELS];
static uint32_t bells[PB_CHANNELS];

static void lock(void)
{
    pb_lock(PB_LOCK_CHANNELS);
}

static void unlock(void)
{
    pb_unlock(PB_LOCK_CHANNELS);
}

static struct pb_channel *find_channel(uint64_t number)
{
    for (int i = 0; i < PB_CHANNELS; i++)
        if (number && pb_channel_places[i].number == number)
            return &pb_channel_places[i];
    return NULL;
}

void pb_channel_ring_bell(struct pb_channel *c)
{
    uint32_t *bell = &bells[c - pb_channel_places];

    __atomic_fetch_add(bell, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(bell);
}

struct pb_channel_memory pb_channel_take_ended(struct pb_channel *c)
{
    struct pb_channel_memory memory = {0};

    if (!c->number || !c->thread_ended || !c->detached)
        return memory;
    memory = (struct pb_channel_memory){c->mapped, c->mapped_size};
    *c = (struct pb_channel){.fd = -1};
    return memory;
}

void pb_channel_discard(struct pb_channel_memory memory)
{
    if (memory.mapped)
        munmap(memory.mapped, memory.size);
}

static void interrupter_failed(void *number, int error)
{
    (void)error;
    lock();
    struct pb_channel *c = find_channel((uintptr_t)number);
    if (c)
        c->interrupter_asked = 0;
    unlock();
}

/* Another thread raises the exception: that may wait for the GIL, the resident thread may not. */
void pb_channel_interrupt(struct pb_channel *c)
{
    if (!c->running) {
        c->interrupt = 1;
    } else {
        c->interrupting = c->interrupting_write = 1;
        if (!c->interrupter_asked)
            c->interrupter_asked =
                pb_spawn(pb_channel_interrupter, interrupter_failed, (void *)(uintptr_t)c->number) == 0;
    }
    pb_channel_ring_bell(c);
}

void pb_channel_lose(struct pb_channel *c, const char *why)
{
    if (c->gone)
        return;
    c->gone = c->input_ended = 1;
    if (!c->closed)
        snprintf(c->reason, sizeof(c->reason), "%s", why);
    if (c->running)
        pb_channel_interrupt(c);
    pb_channel_ring_bell(c);
}

int pb_channel_begin(uint64_t number)
{
    lock();
    struct pb_channel *c = find_channel(number);
    int wanted = c && !c->gone && !c->closed;
    if (wanted)
        c->has_gil = 1;
    unlock();
    return wanted;
}

void pb_channel_describe(uint64_t number, const char **kind, const uint8_t **arguments, size_t *size)
{
    lock();
    struct pb_channel *c = find_channel(number);
    *kind = c ? c->kind : "";
    *arguments = c ? c->mapped + 2 * (size_t)PB_CHANNEL_WINDOW : (const uint8_t *)"";
    *size = c ? c->arguments_size : 0;
    unlock();
}

/* Both copy as many bytes as they can, up to a limit, and return how many. */
static size_t take_from(struct pb_ring *ring, uint8_t *ret, size_t size)
{
    size_t taken = 0;

    while (taken < size && ring->len > 0) {
        size_t n = PB_CHANNEL_WINDOW - ring->at;
        n = n < ring->len ? n : ring->len;
        n = n < size - taken ? n : size - taken;
        memcpy(ret + taken, ring->data + ring->at, n);
        ring->at = (ring->at + n) % PB_CHANNEL_WINDOW;
        ring->len -= n;
        taken += n;
    }
    return taken;
}

static size_t put_into(struct pb_ring *ring, const uint8_t *data, size_t size)
{
    size_t put = 0;

    while (put < size && ring->len < PB_CHANNEL_WINDOW) {
        size_t end = (ring->at + ring->len) % PB_CHANNEL_WINDOW;
        size_t n = PB_CHANNEL_WINDOW - (end > ring->len ? end : ring->len);
        n = n < size - put ? n : size - put;
        memcpy(ring->data + end, data + put, n);
        ring->len += n;
        put += n;
    }
    return put;
}

/* Waits until the place's bell differs from `last_bell`, or until the deadline (0: none). 0: timed out. */
static int wait_for_bell(const uint32_t *bell, uint32_t last_bell, uint64_t until)
{
    uint64_t now = until ? pb_now_ns() : 0;

    if (until && now >= until)
        return 0;
    pb_futex_wait_ms(bell, last_bell, until ? (long)((until - now) / PB_NS_PER_MS) + 1 : -1);
    return 1;
}

static uint64_t time_limit(long timeout_ms)
{
    return timeout_ms < 0 ? 0 : pb_now_ns() + (uint64_t)timeout_ms * PB_NS_PER_MS;
}

long pb_channel_read(uint64_t number, void *ret, size_t size, long timeout_ms)
{
    uint64_t until = time_limit(timeout_ms);

    for (;;) {
        uint64_t to_grant = 0;
        lock();
        struct pb_channel *c = find_channel(number);
        if (!c) {
            unlock();
            return 0;
        }
        const uint32_t *bell = &bells[c - pb_channel_places];
        uint32_t last_bell = __atomic_load_n(bell, __ATOMIC_SEQ_CST);
        size_t n = take_from(&c->in, ret, size < CHUNK ? size : CHUNK);
        int interrupt = n == 0 && c->interrupt, ended = c->input_ended || c->closed;
        c->consumed += n;
        to_grant = c->consumed;
        if (interrupt)
            c->interrupt = 0;
        unlock();
        /* Plain bytes are received whenever there is room. */
        if (n > 0 && to_grant >= PB_CHANNEL_WINDOW / 2)
            pb_wake();
        if (n > 0)
            return (long)n;
        if (interrupt || ended)
            return interrupt ? -EINTR : 0;
        if (!wait_for_bell(bell, last_bell, until))
            return -EAGAIN;
    }
}

long pb_channel_write(uint64_t number, const void *data, size_t size, long timeout_ms)
{
    const uint8_t *bytes = data;
    uint64_t until = time_limit(timeout_ms);
    size_t done = 0;

    for (;;) {
        lock();
        struct pb_channel *c = find_channel(number);
        if (!c || c->gone || c->closed) {
            unlock();
            return -EPIPE;
        }
        const uint32_t *bell = &bells[c - pb_channel_places];
        uint32_t last_bell = __atomic_load_n(bell, __ATOMIC_SEQ_CST);
        size_t left = size - done, n = put_into(&c->out, bytes + done, left < CHUNK ? left : CHUNK);
        int interrupt = timeout_ms != 0 && n == 0 && left > 0 && c->interrupting_write;
        if (interrupt)
            c->interrupting_write = 0;
        unlock();
        done += n;
        if (n > 0)
            pb_wake();
        if (interrupt)
            return -EINTR;
        if (done == size)
            return (long)done;
        if (n == 0 && !wait_for_bell(bell, last_bell, until))
            return (long)done;
    }
}

static void close_locked(struct pb_channel *c, int status, const char *reason)
{
    if (c->closed)
        return;
    c->closed = 1;
    c->end_by_ns = pb_now_ns() + PB_CHANNEL_LINGER_MS * PB_NS_PER_MS;
    if (!c->gone) {
        c->status = status;
        snprintf(c->reason, sizeof(c->reason), "%s", reason);
    }
    pb_channel_ring_bell(c);
}

void pb_channel_close(uint64_t number, int status, const char *reason)
{
    lock();
    struct pb_channel *c = find_channel(number);
    if (c)
        close_locked(c, status, reason);
    unlock();
    pb_wake();
}

void pb_channels_close(const char *reason)
{
    lock();
    for (int i = 0; i < PB_CHANNELS; i++)
        if (pb_channel_places[i].number)
            close_locked(&pb_channel_places[i], 1, reason);
    unlock();
    pb_wake();
}

int pb_channel_ended(uint64_t number, char *ret, size_t size)
{
    lock();
    const struct pb_channel *c = find_channel(number);
    int ended = !c || c->gone || c->closed;
    if (ended && ret)
        snprintf(ret, size, "%s", c ? c->reason : "the channel is closed");
    unlock();
    return ended;
}

int pb_channel_interrupted(uint64_t number)
{
    lock();
    struct pb_channel *c = find_channel(number);
    int interrupted = c && c->interrupt;
    if (c)
        c->interrupt = 0;
    unlock();
    return interrupted;
}

void pb_channel_interrupt_code(uint64_t number)
{
    lock();
    struct pb_channel *c = find_channel(number);
    if (c && c->running)
        pb_channel_interrupt(c);
    unlock();
}

int pb_channel_enter_code(uint64_t number, unsigned long ident)
{
    lock();
    struct pb_channel *c = find_channel(number);
    int r = c && !c->gone ? 0 : -EPIPE;
    if (r == 0) {
        c->running = 1;
        c->ident = ident;
        c->interrupting = c->interrupting_write = 0;
    }
    unlock();
    return r;
}

int pb_channel_leave_code(uint64_t number)
{
    int interrupted = 0;

    for (;;) {
        lock();
        struct pb_channel *c = find_channel(number);
        if (!c) {
            unlock();
            return interrupted;
        }
        const uint32_t *bell = &bells[c - pb_channel_places];
        uint32_t last_bell = __atomic_load_n(bell, __ATOMIC_SEQ_CST);
        int there = c->interrupters_there;
        c->running = 0;
        interrupted = c->interrupting;
        if (!there)
            c->interrupting = 0;
        unlock();
        if (!there)
            return interrupted;
        wait_for_bell(bell, last_bell, 0);
    }
}

int pb_channel_claim(uint64_t number, unsigned long *ident)
{
    lock();
    struct pb_channel *c = find_channel(number);
    int r = c && c->running && c->interrupting ? 0 : -ENOENT;
    if (c)
        c->interrupter_asked = 0;
    if (r == 0) {
        c->interrupters_there++;
        *ident = c->ident;
    }
    unlock();
    return r;
}

void pb_channel_unclaim(uint64_t number)
{
    lock();
    struct pb_channel *c = find_channel(number);
    if (c) {
        c->interrupters_there--;
        pb_channel_ring_bell(c);
    }
    unlock();
}

void pb_channel_thread_end(uint64_t number, int status, const char *reason)
{
    struct pb_channel_memory memory = {0};

    lock();
    struct pb_channel *c = find_channel(number);
    if (c) {
        close_locked(c, status, reason);
        c->thread_ended = 1;
        memory = pb_channel_take_ended(c);
    }
    unlock();
    pb_channel_discard(memory);
    pb_wake();
}
