/* library: see library.h. This file starts the child, sends it names, ends it. */
#include "remote/native/library.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "remote/native/library_child.h"
#include "table/system_calls.h"

enum {
    NAME_MS = 1000,   /* most of it for loading the library from a cold disk */
    CHILDREN_MAX = 3, /* so often a new child is started */
    CHILD_CPU_S = 20,
};

static const rlim_t child_memory = 2ull << 30;

struct pb_library {
    int fd; /* -1: none, or not any more */
    pid_t pid;
    unsigned started;
};

static void limit(int what, rlim_t value)
{
    struct rlimit r = {value, value};
    setrlimit(what, &r);
}

static void run_child(int fd)
{
    /* Closes the parent's descriptors, so that the child keeps none of them open. Before Linux 5.9 they stay
     * open. */
    if (dup2(fd, 3) < 0)
        _exit(1);
    syscall(SYS_close_range, 4, ~0u, 0);
    fd = 3;
    /* Ctrl-C is for the parent; when it ends, our socket is closed. */
    signal(SIGINT, SIG_IGN);
    limit(RLIMIT_AS, child_memory);
    limit(RLIMIT_CPU, CHILD_CPU_S);
    limit(RLIMIT_CORE, 0);
    pb_library_serve(fd);
    _exit(0);
}

static void start_child(struct pb_library *l)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    pid_t pid = pb_process_fork(SIGKILL);
    if (pid == 0) {
        close(pair[0]);
        run_child(pair[1]);
    }
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return;
    }
    l->fd = pair[0];
    l->pid = pid;
}

static void end_child(struct pb_library *l)
{
    if (l->fd < 0)
        return;
    close(l->fd);
    l->fd = -1;
    kill(l->pid, SIGKILL);
    pb_process_wait(l->pid);
}

static int obtain(struct pb_library **library)
{
    if (!*library) {
        struct pb_library *l = calloc(1, sizeof(*l));
        if (!l)
            return -ENOMEM;
        l->fd = -1;
        *library = l;
    }
    if ((*library)->fd < 0 && (*library)->started++ < CHILDREN_MAX)
        start_child(*library);
    return (*library)->fd < 0 ? -EPIPE : 0;
}

/* One request, one answer. A child that fails is ended. */
static ssize_t ask_child(struct pb_library *l, const void *question, size_t len,
                         struct pb_library_answer *answer)
{
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    ssize_t n = send(l->fd, question, len, MSG_NOSIGNAL);
    if (n == (ssize_t)len) {
        int ready;
        while ((ready = poll(&p, 1, NAME_MS)) < 0 && errno == EINTR)
            ;
        n = ready > 0 ? recv(l->fd, answer, sizeof(*answer), 0) : -1;
        if (n > 0)
            return n;
    }
    end_child(l);
    return -EPIPE;
}

int pb_library_demangle(struct pb_library **library, const char *name, char *buf, size_t size)
{
    struct pb_library_question q;
    struct pb_library_answer a;
    size_t len = strlen(name);
    if (len >= sizeof(q.name))
        return -ENOENT;
    int r = obtain(library);
    if (r < 0)
        return r;
    memcpy(q.name, name, len + 1);
    ssize_t n = ask_child(*library, &q, len + 1, &a);
    if (n < 0)
        return (int)n;
    /* A hostile name may have corrupted the child: its answers are checked like the target's. */
    if ((size_t)n <= offsetof(struct pb_library_answer, text) || a.found != 1)
        return -ENOENT;
    size_t text = (size_t)n - offsetof(struct pb_library_answer, text);
    a.text[text - 1] = '\0';
    snprintf(buf, size, "%s", a.text);
    return buf[0] ? 0 : -ENOENT;
}

void pb_library_free(struct pb_library *library)
{
    if (!library)
        return;
    end_child(library);
    free(library);
}
