/* enter: see enter.h. */
#include "agent/enter.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

int pb_enter_find(struct pb_python *ret, char *why, size_t why_size)
{
    const char *missing = "";

    int r = pb_python_find(ret, &missing);
    if (r == -ENOSYS)
        snprintf(why, why_size, "this process's Python lacks %s", missing);
    else if (r < 0)
        snprintf(why, why_size, "there is no Python in this process");
    else if (!pb_python_usable(ret))
        snprintf(why, why_size, "its Python is starting up or shutting down");
    else
        return 0;
    return r < 0 ? r : -EAGAIN;
}

static int create_gil(void *py)
{
    ((struct pb_python *)py)->init_threads();
    return 0;
}

/* The main thread must be the one to make it: made by us, two threads would run at once. It does so between
 * two bytecodes. */
int pb_enter_await_gil(const struct pb_python *py, int (*wanted)(const void *), const void *argument)
{
    static struct pb_python kept; /* outlives the caller: the call may be made late */
    const struct timespec pause = {.tv_nsec = 1000000};

    if (py->minor > 6 || !py->threads_initialized || py->threads_initialized())
        return 1;
    kept = *py;
    py->add_pending_call(create_gil, &kept);
    while (!py->threads_initialized() && wanted(argument))
        nanosleep(&pause, NULL);
    return py->threads_initialized();
}
