/* ending: see ending.h. */
#include "base/ending.h"

#include "base/procfs.h"
#include "base/time.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 0: it has ended, though its parent may not know yet. */
static uint64_t read_start_time(pid_t pid)
{
    char text[1024], state;
    unsigned threads;
    uint64_t start;

    int n = pb_proc_read(pid, "stat", text, sizeof(text));
    const char *name_end = n < 0 ? NULL : strrchr(text, ')');
    if (!name_end ||
        sscanf(name_end,
               ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %u %*d %" SCNu64, &state,
               &threads, &start) != 3)
        return 0;
    /* A main thread that has ended is a zombie while others of the process run. */
    return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : start;
}

static bool has_ended(const struct pb_ending *e)
{
    return read_start_time(e->pid) != e->start_time;
}

int pb_ending_open(pid_t pid, uint64_t start_time, struct pb_ending *ret)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    uint64_t now = read_start_time(pid); /* read after pidfd_open, so that the pidfd is of that process */

    if (!now || (start_time && now != start_time)) {
        if (fd >= 0)
            close(fd);
        return -ESRCH;
    }
    *ret = (struct pb_ending){pid, fd, now};
    return 0;
}

void pb_ending_close(struct pb_ending *e)
{
    if (e->pidfd >= 0)
        close(e->pidfd);
    e->pidfd = -1;
}

int pb_ending_signal(const struct pb_ending *e, int signal)
{
    if (e->pidfd >= 0 && syscall(SYS_pidfd_send_signal, e->pidfd, signal, NULL, 0) == 0)
        return 0;
    if (e->pidfd >= 0 && errno != ENOSYS && errno != EPERM)
        return -errno;
    if (has_ended(e))
        return -ESRCH;
    return kill(e->pid, signal) < 0 ? -errno : 0;
}

int pb_ending_wait(const struct pb_ending *e, unsigned ms)
{
    enum { LOOK_MS = 20 };
    uint64_t deadline = pb_now_ns() + ms * PB_NS_PER_MS;

    /* With a pidfd poll returns at the end; without, it is a pause. */
    while (!has_ended(e)) {
        if (pb_now_ns() >= deadline)
            return -ETIMEDOUT;
        poll(&(struct pollfd){e->pidfd, POLLIN, 0}, 1, LOOK_MS);
    }
    return 0;
}
