/* gil_work: see gil_work.h. */
#include "agent/python/gil_work.h"

#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/python/enter.h"

#include <stdio.h>

static int is_always_wanted(const void *unused)
{
    (void)unused;
    return 1;
}

/* Whether it was done. */
static int try_it(const struct pb_gil_work *work)
{
    struct pb_python py;
    struct pb_entry entry;
    char why[160];

    if ((work->possible && !work->possible()) || pb_enter_find(&py, why, sizeof(why)) < 0)
        return 0;
    if (py.free_threaded) {
        work->refused("a Python without a GIL: not recorded yet");
    } else if (py.minor < work->least_minor) {
        snprintf(why, sizeof(why), "needs Python 3.%d", work->least_minor);
        work->refused(why);
    } else if (pb_enter_await_gil(&py, is_always_wanted, NULL) && pb_enter(&py, &entry) == 0) {
        work->run(&py);
        pb_leave(&py, &entry);
        return 1;
    }
    return 0;
}

static void *do_work(void *argument)
{
    struct pb_gil_work *work = argument;

    pb_thread_name(work->name);
    int done = try_it(work);
    __atomic_store_n(&work->working, 0, __ATOMIC_SEQ_CST);
    /* A change that came while we were at it has found us working, and left the rest to us. */
    if (done && work->again())
        pb_gil_work_start(work);
    return NULL;
}

static void give_up(void *argument, int error)
{
    struct pb_gil_work *work = argument;
    (void)error;
    __atomic_store_n(&work->working, 0, __ATOMIC_SEQ_CST);
}

int pb_gil_work_start(struct pb_gil_work *work)
{
    uint32_t none = 0;

    if (!__atomic_compare_exchange_n(&work->working, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    if (pb_spawn(do_work, give_up, work) < 0)
        __atomic_store_n(&work->working, 0, __ATOMIC_SEQ_CST);
    return 1;
}

void pb_gil_work_forget(struct pb_gil_work *work)
{
    work->working = 0;
}
