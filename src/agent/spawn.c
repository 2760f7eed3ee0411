/* spawn: see spawn.h. */
#include "agent/spawn.h"

#include "agent/futex.h"
#include "agent/lock.h"
#include "agent/thread.h"

#include <errno.h>
#include <string.h>

#define WAITING 32

struct order {
    void *(*run)(void *);
    void (*failed)(void *argument, int error);
    void *argument;
};

/* Guarded by PB_LOCK_SPAWN. */
static struct order orders[WAITING];
static uint32_t norders, last_ended;
static uint32_t last_begun; /* atomic */

static uint32_t bell; /* raised with each change */

static void ring(void)
{
    __atomic_fetch_add(&bell, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(&bell);
}

int pb_spawn(void *(*run)(void *), void (*failed)(void *argument, int error), void *argument)
{
    pb_lock(PB_LOCK_SPAWN);
    int r = norders < WAITING ? 0 : -EAGAIN;
    if (r == 0)
        orders[norders++] = (struct order){run, failed, argument};
    pb_unlock(PB_LOCK_SPAWN);
    ring();
    return r;
}

uint32_t pb_spawn_begin(void)
{
    return __atomic_add_fetch(&last_begun, 1, __ATOMIC_SEQ_CST);
}

void pb_spawn_end(uint32_t number)
{
    pb_lock(PB_LOCK_SPAWN);
    if (number > last_ended)
        last_ended = number;
    pb_unlock(PB_LOCK_SPAWN);
    ring();
}

/* 1: an order; 0: none now; -1: none, and no more to come. */
static int take_order(uint32_t number, struct order *ret)
{
    pb_lock(PB_LOCK_SPAWN);
    int r = norders > 0 ? 1 : number <= last_ended ? -1 : 0;
    if (r > 0) {
        *ret = orders[0];
        memmove(orders, orders + 1, --norders * sizeof(orders[0]));
    }
    pb_unlock(PB_LOCK_SPAWN);
    return r;
}

static void *take_over(void *number)
{
    pb_thread_name("probing-start");
    pb_spawn_serve((uint32_t)(uintptr_t)number);
    return NULL;
}

void pb_spawn_serve(uint32_t number)
{
    struct order order;
    int r;

    for (;;) {
        uint32_t heard = __atomic_load_n(&bell, __ATOMIC_SEQ_CST);
        while ((r = take_order(number, &order)) > 0) {
            int started = pb_thread_start(take_over, (void *)(uintptr_t)number, PB_SPAWN_STACK);
            if (started == 0) {
                order.run(order.argument);
                return;
            }
            if (order.failed)
                order.failed(order.argument, started);
        }
        if (r < 0)
            return;
        pb_futex_wait(&bell, heard);
    }
}

void pb_spawn_forget(void)
{
    norders = 0;
    last_ended = last_begun;
}
