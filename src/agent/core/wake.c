/* wake: see wake.h. */
#include "agent/core/wake.h"

#include "agent/core/fds.h"
#include "agent/core/futex.h"
#include "agent/core/thread_start.h"

#include <errno.h>
#include <fcntl.h>

static uint32_t word;
static uint32_t stopping, stopped; /* of the running thread */
static int ends[2] = {-1, -1};     /* of the pipe; changed only while no such thread runs */

void pb_wake(void)
{
    __atomic_fetch_add(&word, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(&word);
}

uint32_t *pb_wake_word(void)
{
    return &word;
}

static void *pass_on(void *first)
{
    uint32_t seen = (uint32_t)(uintptr_t)first;

    pb_thread_name("probing-wake");
    while (!__atomic_load_n(&stopping, __ATOMIC_SEQ_CST)) {
        uint32_t now = __atomic_load_n(&word, __ATOMIC_SEQ_CST);
        if (now == seen) {
            pb_futex_wait(&word, seen);
            continue;
        }
        seen = now;
        if (pb_fd_ours(ends[1])) {
            ssize_t n = write(ends[1], "", 1);
            (void)n; /* a full pipe is readable as well */
        }
    }
    __atomic_store_n(&stopped, 1, __ATOMIC_SEQ_CST);
    pb_futex_wake(&stopped);
    return NULL;
}

static void close_ends(void)
{
    pb_fd_close(ends[0]);
    pb_fd_close(ends[1]);
    ends[0] = ends[1] = -1;
}

int pb_wake_start(void)
{
    int made[2];

    if (pipe2(made, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    ends[0] = pb_fd_keep(made[0]);
    ends[1] = pb_fd_keep(made[1]);
    int r = ends[0] < 0 ? ends[0] : ends[1] < 0 ? ends[1] : 0;
    stopping = stopped = 0;
    if (r == 0)
        r = pb_thread_start(pass_on, (void *)(uintptr_t)__atomic_load_n(&word, __ATOMIC_SEQ_CST), 0);
    if (r < 0)
        close_ends();
    return r;
}

int pb_wake_fd(void)
{
    return ends[0];
}

void pb_wake_drain(void)
{
    char bytes[64];

    while (read(ends[0], bytes, sizeof(bytes)) == sizeof(bytes))
        ;
}

void pb_wake_stop(void)
{
    __atomic_store_n(&stopping, 1, __ATOMIC_SEQ_CST);
    pb_wake();
    while (!__atomic_load_n(&stopped, __ATOMIC_SEQ_CST))
        pb_futex_wait(&stopped, 0);
    close_ends();
}
