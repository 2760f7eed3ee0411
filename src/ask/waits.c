/* waits: see waits.h. Python locks are in wait_locks.c, the other ends of descriptors in wait_peer.c. */
#include "ask/waits.h"

#include "ask/stacks.h"
#include "base/procfs.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[PB_WAIT_KINDS] = {
    [PB_WAIT_NONE] = "none",
    [PB_WAIT_GIL] = "gil",
    [PB_WAIT_PYTHON_LOCK] = "python lock",
    [PB_WAIT_MUTEX] = "mutex",
    [PB_WAIT_FUTEX] = "futex",
    [PB_WAIT_PIPE] = "pipe",
    [PB_WAIT_SOCKET] = "socket",
    [PB_WAIT_FILE] = "file",
    [PB_WAIT_POLL] = "poll",
    [PB_WAIT_FILE_LOCK] = "file lock",
    [PB_WAIT_CHILD] = "child",
    [PB_WAIT_SLEEP] = "sleep",
    [PB_WAIT_LOADER_WORKER] = "data loader worker",
    [PB_WAIT_COLLECTIVE] = "collective",
    [PB_WAIT_STOPPED] = "stopped",
    [PB_WAIT_CALL] = "system call",
};

const char *pb_wait_name(enum pb_wait_kind kind)
{
    return names[kind];
}

void pb_waits_done(struct pb_waits *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->at[i].group_ranks);
    free(w->at);
    *w = (struct pb_waits){0};
}

/* The kind of wait by system call. fd: the first argument is a descriptor that is read from or written to. */
static const struct {
    const char *call;
    enum pb_wait_kind kind;
    enum { NO_FD, FROM, TO } fd;
} calls[] = {
    {"read", PB_WAIT_FILE, FROM},         {"readv", PB_WAIT_FILE, FROM},
    {"pread64", PB_WAIT_FILE, FROM},      {"recvfrom", PB_WAIT_SOCKET, FROM},
    {"recvmsg", PB_WAIT_SOCKET, FROM},    {"recvmmsg", PB_WAIT_SOCKET, FROM},
    {"accept", PB_WAIT_SOCKET, FROM},     {"accept4", PB_WAIT_SOCKET, FROM},
    {"connect", PB_WAIT_SOCKET, TO},      {"write", PB_WAIT_FILE, TO},
    {"writev", PB_WAIT_FILE, TO},         {"sendto", PB_WAIT_SOCKET, TO},
    {"sendmsg", PB_WAIT_SOCKET, TO},      {"poll", PB_WAIT_POLL, NO_FD},
    {"ppoll", PB_WAIT_POLL, NO_FD},       {"select", PB_WAIT_POLL, NO_FD},
    {"pselect6", PB_WAIT_POLL, NO_FD},    {"epoll_wait", PB_WAIT_POLL, NO_FD},
    {"epoll_pwait", PB_WAIT_POLL, NO_FD}, {"epoll_pwait2", PB_WAIT_POLL, NO_FD},
    {"flock", PB_WAIT_FILE_LOCK, FROM},   {"fcntl", PB_WAIT_FILE_LOCK, FROM},
    {"wait4", PB_WAIT_CHILD, NO_FD},      {"waitid", PB_WAIT_CHILD, NO_FD},
    {"nanosleep", PB_WAIT_SLEEP, NO_FD},  {"clock_nanosleep", PB_WAIT_SLEEP, NO_FD},
};

/* The kind of wait by the frame of a library function. A data loader without workers calls the user's data
 * set from the same file: only the function that waits for a worker counts. */
static const struct {
    const char *file, *function;
    enum pb_wait_kind kind;
} libraries[] = {
    {"torch/distributed/distributed_c10d.py", NULL, PB_WAIT_COLLECTIVE},
    {"torch/utils/data/dataloader.py", "_try_get_data", PB_WAIT_LOADER_WORKER},
};

#define LIBRARY_FRAMES 32         /* the waiting function is within so many of the innermost frames */
#define RANKS_KEPT     (1u << 18) /* of groups: a hostile process may have any number of threads */

/* The frame of a known library function that waits; NULL: none. */
static const struct pb_shown_frame *find_library_wait(const struct pb_shown_thread *t, enum pb_wait_kind *ret)
{
    for (size_t k = 0; k < sizeof(libraries) / sizeof(libraries[0]); k++)
        for (size_t i = 0; i < t->nframes && i < LIBRARY_FRAMES; i++) {
            const struct pb_py_code *code = t->frames[i].code;
            if (!pb_text_ends_with(code->file, libraries[k].file) ||
                (libraries[k].function && strcmp(code->name, libraries[k].function) != 0))
                continue;
            *ret = libraries[k].kind;
            return &t->frames[i];
        }
    return NULL;
}

static void look_for_library(const struct pb_shown_thread *t, struct pb_wait *w)
{
    const struct pb_shown_frame *f = find_library_wait(t, &w->kind);

    if (f)
        snprintf(w->text, sizeof(w->text), "%s", f->code->name);
}

static const struct pb_shown_thread *find_ns_thread(const struct pb_stacks *s, pid_t ns_tid)
{
    for (size_t i = 0; ns_tid > 0 && i < s->n; i++)
        if (s->threads[i].native.ns_tid == ns_tid)
            return &s->threads[i];
    return NULL;
}

/* A futex is taken for a pthread mutex (glibc, musl) if its word is locked with waiters and its owner is
 * another thread of this process: a condition or a semaphore looks like that only by chance. */
static void look_at_futex(struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_wait *w)
{
    enum { HELD_WITH_WAITERS = 2, OWNER = 2 };
    uint32_t words[3];

    w->kind = PB_WAIT_FUTEX;
    w->object = t->syscall_args[0];
    if ((t->syscall_args[1] & (uint64_t)FUTEX_CMD_MASK) != FUTEX_WAIT ||
        pb_source_read(&s->source, w->object, words, sizeof(words)) < 0 || words[0] != HELD_WITH_WAITERS)
        return;
    const struct pb_shown_thread *owner = find_ns_thread(s, (pid_t)words[OWNER]);
    if (!owner || owner == t)
        return;
    w->kind = PB_WAIT_MUTEX;
    w->holder_pid = s->pid;
    w->holder_tid = owner->native.tid;
}

static void classify_call(struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_wait *w)
{
    const char *call = t->syscall >= 0 ? pb_syscall_name(t->syscall) : NULL;

    w->kind = PB_WAIT_CALL;
    if (!call)
        return;
    if (strncmp(call, "futex", 5) == 0) {
        look_at_futex(s, t, w);
        return;
    }
    snprintf(w->text, sizeof(w->text), "%s", call);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(call, calls[i].call) == 0) {
            w->kind = calls[i].kind;
            w->fd = calls[i].fd != NO_FD ? (int)t->syscall_args[0] : -1;
            w->writes = calls[i].fd == TO;
            if (w->kind == PB_WAIT_CHILD && strcmp(call, "wait4") == 0 && (int32_t)t->syscall_args[0] > 0)
                w->holder_pid = (pid_t)t->syscall_args[0];
        }
}

static void classify_wait(struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_wait *w)
{
    if (t->native.state == 'T' || t->native.state == 't') {
        w->kind = PB_WAIT_STOPPED;
        return;
    }
    if (!t->off_cpu)
        return;
    classify_call(s, t, w);
    if (t->python && w->kind == PB_WAIT_FUTEX && !t->gil && s->py &&
        pb_py_waits_for_gil(s->py, &t->py, t->syscall_args[0]))
        w->kind = PB_WAIT_GIL;
    else
        look_for_library(t, w);
}

/* The thread that was seen to hold the GIL. */
static void name_gil_holder(const struct pb_stacks *s, struct pb_waits *w)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; s->threads[i].gil && k < w->n; k++)
            if (w->at[k].kind == PB_WAIT_GIL) {
                w->at[k].holder_pid = s->pid;
                w->at[k].holder_tid = s->threads[i].native.tid;
            }
}

/* The process that holds a file lock, from /proc/locks: "1: FLOCK ADVISORY WRITE 4711 fd:01:1234 0 EOF". */
static void name_file_locker(const struct pb_stacks *s, struct pb_wait *w)
{
    char path[32], text[512];

    snprintf(path, sizeof(path), "fdinfo/%d", w->fd);
    uint64_t inode = pb_proc_read(s->pid, path, text, sizeof(text)) > 0 ? pb_proc_number(text, "ino", 10) : 0;
    FILE *locks = inode ? fopen("/proc/locks", "re") : NULL;
    for (int pid; locks && !w->holder_pid && fgets(text, sizeof(text), locks);) {
        uint64_t found;
        if (!strstr(text, "->") && /* "->": a waiter */
            sscanf(text, "%*d: %*s %*s %*s %d %*x:%*x:%" SCNu64, &pid, &found) == 2 && found == inode &&
            pid > 0 && pid != s->pid)
            w->holder_pid = (pid_t)pid;
    }
    if (locks)
        fclose(locks);
    w->object = inode;
}

/* Whether the thread still sleeps as it did when it was read: one that woke up since waits for nothing.
 * `more` reads data meanwhile, which is valid if this returns true; may be NULL. */
static bool still_sleeps(struct pb_stacks *s, const struct pb_shown_thread *t, int (*more)(void *arg),
                         void *arg)
{
    struct pb_moment m;

    if (pb_source_moment(&s->source, t->native.tid, &m) < 0)
        return false;
    int way = pb_moment_begin(&m, PB_WAY_ASLEEP);
    bool same = (way == PB_WAY_ASLEEP || way == PB_WAY_DEAD) && m.syscall == t->syscall &&
                m.syscall_args[0] == t->syscall_args[0] && (!more || more(arg) == 0) &&
                pb_moment_end(&m) == 0;
    pb_moment_close(&m);
    return same;
}

struct group_question {
    struct pb_stacks *s;
    const struct pb_py_frame *frame;
    struct pb_py_group group;
};

static int read_group(void *arg)
{
    struct group_question *q = arg;

    free(q->group.ranks);
    q->group = (struct pb_py_group){0};
    pb_source_keep(&q->s->source, 0); /* neighbouring data is read at once */
    int r = pb_py_process_group(q->s->py, q->frame, &q->group);
    pb_source_forget(&q->s->source);
    return r;
}

/* left: how many ranks may still be stored for this process. */
static void name_group(struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_wait *w, size_t *left)
{
    enum pb_wait_kind kind;
    const struct pb_shown_frame *f = find_library_wait(t, &kind);
    struct group_question q = {.s = s, .frame = f ? &f->at : NULL};

    if (!f || *left == 0 || !s->py || !still_sleeps(s, t, read_group, &q)) {
        free(q.group.ranks);
        return;
    }
    snprintf(w->group, sizeof(w->group), "%s", q.group.name);
    *left -= q.group.n < *left ? q.group.n : *left;
    w->group_ranks = q.group.ranks;
    w->ngroup_ranks = q.group.n;
}

/* A poll of one descriptor waits for that: the other end of a connection is named. Others stay a poll: a
 * server that polls its listening socket waits for nobody. */
static void look_at_poll(struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_wait *w)
{
    struct pb_wait found = *w;
    struct pollfd one;

    if (t->syscall_args[1] != 1 || strstr(w->text, "poll") == NULL || w->text[0] == 'e' ||
        pb_source_read(&s->source, t->syscall_args[0], &one, sizeof(one)) < 0 || one.fd < 0)
        return;
    found.fd = one.fd;
    found.writes = !(one.events & POLLIN);
    pb_wait_peer(s->pid, &found);
    if (found.kind == PB_WAIT_SOCKET && found.remote_port)
        *w = found;
}

static void look_closer(struct pb_stacks *s, const struct pb_shown_thread *t, struct pb_wait *w,
                        size_t *ranks_left)
{
    if (w->kind == PB_WAIT_COLLECTIVE)
        name_group(s, t, w, ranks_left);
    if (!s->source.pid)
        return;
    if (w->kind == PB_WAIT_FILE_LOCK)
        name_file_locker(s, w);
    else if (w->kind == PB_WAIT_FILE || w->kind == PB_WAIT_SOCKET)
        pb_wait_peer(s->pid, w);
    else if (w->kind == PB_WAIT_POLL)
        look_at_poll(s, t, w);
    if (w->kind != PB_WAIT_NONE && w->kind != PB_WAIT_STOPPED)
        w->seconds = pb_wait_seconds(s, t);
}

int pb_waits_find(struct pb_stacks *s, enum pb_waits_depth depth, struct pb_waits *ret)
{
    struct pb_waits w = {calloc(s->n + 1, sizeof(*w.at)), s->n};
    size_t ranks_left = RANKS_KEPT;

    if (!w.at)
        return -ENOMEM;
    for (size_t i = 0; i < s->n; i++) {
        const struct pb_shown_thread *t = &s->threads[i];
        w.at[i] = (struct pb_wait){.tid = t->native.tid, .fd = -1, .holder_frame = -1, .seconds = -1};
        classify_wait(s, t, &w.at[i]);
    }
    name_gil_holder(s, &w);
    pb_wait_python_locks(s, &w);
    for (size_t i = 0; i < s->n; i++)
        if (depth == PB_WAITS_ALL || s->threads[i].native.tid == s->pid)
            look_closer(s, &s->threads[i], &w.at[i], &ranks_left);
    *ret = w;
    return 0;
}

/* --- circles --- */

static bool is_lock(const struct pb_wait *w)
{
    return w->kind == PB_WAIT_PYTHON_LOCK || w->kind == PB_WAIT_MUTEX;
}

/* The thread that holds what thread i waits for; w->n: none, or unknown. */
static size_t holder_of(const struct pb_waits *w, size_t i)
{
    size_t at = 0;

    if (!is_lock(&w->at[i]) || !w->at[i].holder_tid)
        return w->n;
    while (at < w->n && w->at[at].tid != w->at[i].holder_tid)
        at++;
    return at;
}

int pb_waits_circle(struct pb_stacks *s, const struct pb_waits *w, size_t *ret, int max)
{
    for (size_t first = 0; first < w->n; first++) {
        int n = 0;
        for (size_t at = first; at < w->n && n < max; at = holder_of(w, at)) {
            ret[n++] = at;
            if (holder_of(w, at) != first)
                continue;
            bool asleep = true;
            for (int k = 0; asleep && k < n; k++)
                asleep = still_sleeps(s, &s->threads[ret[k]], NULL, NULL);
            if (asleep)
                return n;
            break;
        }
    }
    return 0;
}

/* --- how long --- */

/* When the thread last ran, on the scheduler's clock, in seconds; 0: the kernel does not tell. */
static double last_ran(pid_t pid, pid_t tid)
{
    char path[48], text[512];

    snprintf(path, sizeof(path), "task/%d/sched", (int)tid);
    if (pb_proc_read(pid, tid ? path : "sched", text, sizeof(text)) < 0)
        return 0;
    const char *at = strstr(text, "se.exec_start"), *colon = at ? strchr(at, ':') : NULL;
    return colon ? strtod(colon + 1, NULL) / 1e3 : 0;
}

/* Each CPU has its own scheduler clock: ours is read on the CPU where the thread last ran. */
double pb_wait_seconds(const struct pb_stacks *s, const struct pb_shown_thread *t)
{
    cpu_set_t before, there;
    double then = s->source.pid ? last_ran(s->pid, t->native.tid) : 0, now = 0; /* a core has no clock */

    if (then <= 0 || t->native.cpu < 0 || t->native.cpu >= CPU_SETSIZE ||
        sched_getaffinity(0, sizeof(before), &before) < 0)
        return -1;
    CPU_ZERO(&there);
    CPU_SET((size_t)t->native.cpu, &there);
    if (sched_setaffinity(0, sizeof(there), &there) == 0) {
        now = last_ran(0, 0);
        sched_setaffinity(0, sizeof(before), &before);
    }
    return now > then ? now - then : -1;
}

bool pb_wait_slices(pid_t pid, pid_t tid, unsigned long *ret)
{
    char path[48], text[96];

    snprintf(path, sizeof(path), "task/%d/schedstat", (int)tid);
    return pb_proc_read(pid, path, text, sizeof(text)) > 0 && sscanf(text, "%*s %*s %lu", ret) == 1;
}
