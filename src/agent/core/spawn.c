/* spawn: see spawn.h. */
#include "agent/core/spawn.h"

#include "agent/core/futex.h"
#include "agent/core/lock.h"
#include "agent/core/thread_start.h"
#include "table/pages.h"

#include <errno.h>
#include <string.h>

#define WAITING      32
#define STACK        (8u << 20) /* Python code runs on it */
#define STACK_USED   (256u << 10)
#define STACK_SPARED (256u << 10) /* below the top of the stack, wherever exactly that is */

struct spawn_order {
    void *(*run)(void *);
    void (*failed)(void *argument, int error);
    void *argument;
};

/* Guarded by PB_LOCK_SPAWN. */
static struct spawn_order orders[WAITING];
static uint32_t norders, last_ended;
static uint32_t last_started; /* atomic */

static uint32_t bell; /* raised with each change */

static void ring_bell(void)
{
    __atomic_fetch_add(&bell, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(&bell);
}

int pb_spawn(void *(*run)(void *), void (*failed)(void *argument, int error), void *argument)
{
    pb_lock(PB_LOCK_SPAWN);
    int r = __atomic_load_n(&last_started, __ATOMIC_SEQ_CST) == last_ended ? -ESHUTDOWN
            : norders == WAITING                                           ? -EAGAIN
                                                                           : 0;
    if (r == 0)
        orders[norders++] = (struct spawn_order){run, failed, argument};
    pb_unlock(PB_LOCK_SPAWN);
    ring_bell();
    return r;
}

uint32_t pb_spawn_begin(void)
{
    return __atomic_add_fetch(&last_started, 1, __ATOMIC_SEQ_CST);
}

void pb_spawn_end(uint32_t number)
{
    pb_lock(PB_LOCK_SPAWN);
    if (number > last_ended)
        last_ended = number;
    pb_unlock(PB_LOCK_SPAWN);
    ring_bell();
}

/* 1: an order; 0: none now; -1: none, and no more will come. */
static int take_order(uint32_t number, struct spawn_order *ret)
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

static void serve_orders(uint32_t number);

/* Gives back the unused part of the stack: of eight megabytes nearly all code uses less than one. */
static void *serve_order(void *number)
{
    pb_thread_name("probing-start");
    struct pb_unlocked unlocked = pb_pages_free_stack(STACK_USED, STACK - STACK_SPARED);
    serve_orders((uint32_t)(uintptr_t)number);
    pb_pages_keep_stack(&unlocked);
    return NULL;
}

int pb_spawn_start(uint32_t number)
{
    return pb_thread_start(serve_order, (void *)(uintptr_t)number, STACK);
}

static void serve_orders(uint32_t number)
{
    struct spawn_order order;
    int r;

    for (;;) {
        uint32_t last_bell = __atomic_load_n(&bell, __ATOMIC_SEQ_CST);
        while ((r = take_order(number, &order)) > 0) {
            int started = pb_spawn_start(number);
            if (started == 0) {
                order.run(order.argument);
                return;
            }
            if (order.failed)
                order.failed(order.argument, started);
        }
        if (r < 0)
            return;
        pb_futex_wait(&bell, last_bell);
    }
}

void pb_spawn_forget(void)
{
    norders = 0;
    last_ended = last_started;
}
