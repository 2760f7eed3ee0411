/* serves: see serves.h. It accepts connections, or polls with epoll what listens. */
#include "diagnose/serves.h"

#include "ask/waits.h"
#include "base/procfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WATCHED_MAX = 64 };

static bool listens(pid_t pid, int fd)
{
    struct pb_wait w = {.kind = PB_WAIT_SOCKET, .fd = fd};

    pb_wait_peer(pid, &w);
    return strstr(w.text, "listens") != NULL;
}

static bool watches_listener(pid_t pid, int epoll)
{
    char path[48], text[8192];
    int n = 0;

    snprintf(path, sizeof(path), "fdinfo/%d", epoll);
    if (pb_proc_read(pid, path, text, sizeof(text)) < 0)
        return false;
    for (const char *at = text; n++ < WATCHED_MAX && (at = strstr(at, "tfd:")); at += 4)
        if (listens(pid, atoi(at + 4)))
            return true;
    return false;
}

bool pb_diag_serves(pid_t pid, const struct pb_shown_thread *t)
{
    const char *call = t->off_cpu && t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;

    if (!call || !t->python)
        return false;
    if (strncmp(call, "accept", 6) == 0)
        return true;
    return strncmp(call, "epoll_", 6) == 0 && watches_listener(pid, (int)t->syscall_args[0]);
}
