/* task: see task.h. */
#include "ask/task.h"

#include "base/cleanup.h"
#include "base/null.h"
#include "base/retry.h"
#include "table/system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
    PARALLEL = 64,     /* children at a time */
    NOTE_MAX = 512,    /* bytes of one note */
    CHANNEL = 3,       /* descriptor number of its socket in the child */
    REAP_MS = 500,     /* for a killed child to end; one in an uninterruptible sleep takes longer */
    DEATH_MS = 200,    /* for the status of a child that ended by itself */
    GENTLE_MS = 1500,  /* for a child to end after SIGTERM */
    SMALLEST = 1 << 16 /* least size of a room, in bytes */
};

/* At the start of the shared memory. */
struct pb_room {
    size_t size, used;
    void *answer;
    size_t done; /* pb_each_run: how many items the child has finished */
    int result;
    struct pb_err err;
    int channel; /* the child's socket; -1: no child, fd is kept here */
    int fd;
};

static struct pb_room *make_room(size_t size)
{
    /* Untouched memory costs nothing, except where overcommit is forbidden: then a smaller room is tried. */
    for (size = size > SMALLEST ? size : SMALLEST; size >= SMALLEST; size /= 2) {
        void *at =
            mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            continue;
        struct pb_room *room = at;
        *room = (struct pb_room){.size = size, .used = (sizeof(*room) + 15) & ~15ul, .channel = -1, .fd = -1};
        return room;
    }
    return NULL;
}

void pb_room_free(struct pb_room *room)
{
    if (room)
        munmap(room, room->size);
}

void *pb_room_alloc(struct pb_room *room, size_t size)
{
    if (size > room->size - room->used)
        return NULL;
    void *at = (char *)room + room->used;
    size = (size + 15) & ~15ul;
    room->used = size > room->size - room->used ? room->size : room->used + size;
    return at;
}

void *pb_room_copy(struct pb_room *room, const void *from, size_t size)
{
    void *to = pb_room_alloc(room, size);
    return to && size ? memcpy(to, from, size) : to;
}

char *pb_room_text(struct pb_room *room, const char *text)
{
    return text ? pb_room_copy(room, text, strlen(text) + 1) : NULL;
}

void pb_task_answer(struct pb_room *room, void *answer)
{
    room->answer = answer;
}

void *pb_task_answer_of(const struct pb_task *task)
{
    return task->room ? task->room->answer : NULL;
}

int pb_task_fetch(const struct pb_ask *ask, struct pb_task *task, void *ret, size_t size, struct pb_err *err)
{
    task->room_size = size + 4096;
    int r = pb_task_run(ask, task, err);

    if (r < 0)
        return r;
    memcpy(ret, pb_task_answer_of(task), size);
    pb_room_free(task->room);
    return 0;
}

/* --- the child --- */

/* The first byte of each message. */
enum { SAYS_NOTE = 'n', SAYS_FD = 'f', SAYS_MORE = 'm', SAYS_DONE = 'd' };

static int send_message(int channel, char kind, const void *text, size_t len, int fd)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data[] = {{&kind, 1}, {(void *)(uintptr_t)text, len}};
    struct msghdr m = {.msg_iov = data, .msg_iovlen = 2};

    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof(control);
        struct cmsghdr *header = CMSG_FIRSTHDR(&m);
        *header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(header), &fd, sizeof(int));
    }
    return sendmsg(channel, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void send_note(void *arg, const char *text)
{
    const struct pb_room *room = arg;
    send_message(room->channel, SAYS_NOTE, text, strnlen(text, NOTE_MAX - 2), -1);
}

int pb_task_give_fd(struct pb_room *room, int fd)
{
    if (room->channel < 0) {
        room->fd = fd;
        return 0;
    }
    int r = send_message(room->channel, SAYS_FD, "", 0, fd);
    close(fd);
    return r;
}

void pb_task_extend(const struct pb_room *room, unsigned limit_ms)
{
    if (room->channel >= 0)
        send_message(room->channel, SAYS_MORE, &limit_ms, sizeof(limit_ms), -1);
}

/* Resets handlers and mask to their defaults. Ignored signals (nohup) stay ignored. */
static void forget_signals(void)
{
    sigset_t none;

    for (int number = 1; number < NSIG; number++) {
        struct sigaction found, usual = {.sa_handler = SIG_DFL};
        if (sigaction(number, NULL, &found) == 0 && found.sa_handler != SIG_IGN)
            sigaction(number, &usual, NULL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

__attribute__((noreturn)) static void run_child(const struct pb_ask *ask, const struct pb_task *task,
                                                struct pb_room *room, int channel, pid_t parent)
{
    struct pb_ask ours = {.in_child = true, .limit_ms = ask ? ask->limit_ms : 0};

    forget_signals();
    /* SIGKILL does no harm: the kernel resumes a traced thread when its tracer dies, and an unfinished
     * injection is undone by the code that it placed in the target. With SIGTERM it is undone at once. */
    prctl(PR_SET_PDEATHSIG, task->gentle ? SIGTERM : SIGKILL);
    if (getppid() != parent)
        _exit(1);
    /* The caller's connections and files must not be kept open by the child. Before Linux 5.9 they are. */
    if (channel != CHANNEL && dup3(channel, CHANNEL, O_CLOEXEC) < 0)
        _exit(1);
    /* Nor its output: who reads that from a pipe would wait for a child that the kernel cannot end. */
    pb_null_over(STDOUT_FILENO, STDOUT_FILENO);
    syscall(SYS_close_range, CHANNEL + 1, ~0u, 0);
    room->channel = CHANNEL;
    if (ask) {
        ours.archive = ask->archive;
        ours.archive_node = ask->archive_node;
        ours.note = ask->note ? send_note : NULL;
        ours.note_arg = room;
    }
    room->result = task->work(&ours, task->arg, room, &room->err);
    send_message(CHANNEL, SAYS_DONE, "", 0, -1);
    _exit(0);
}

/* --- the caller --- */

struct task_child {
    struct pb_task *task;
    struct pb_room *room;
    pid_t pid;
    int channel;
    uint64_t until;
    int ending; /* why SIGTERM was sent: negative errno; 0: it was not */
};

static void fail_task(struct pb_task *t, int r, const char *what)
{
    t->result =
        t->pid ? pb_fail(&t->err, r, "process %d: %s", (int)t->pid, what) : pb_fail(&t->err, r, "%s", what);
}

static void clear_task(struct pb_task *t)
{
    t->room = NULL;
    t->fd = -1;
    t->err.text[0] = '\0';
}

static int start_child(const struct pb_ask *ask, struct pb_task *t, struct task_child *ret)
{
    unsigned limit_ms = ask && ask->limit_ms ? ask->limit_ms : t->limit_ms;
    int pair[2];

    clear_task(t);
    struct pb_room *room = make_room(t->room_size + sizeof(*room));
    if (!room || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        fail_task(t, -ENOMEM, room ? strerror(errno) : "out of memory");
        pb_room_free(room);
        return -1;
    }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        run_child(ask, t, room, pair[1], parent);
    int failed = errno;
    close(pair[1]);
    if (pid < 0) {
        fail_task(t, -failed, strerror(failed));
        close(pair[0]);
        pb_room_free(room);
        return -1;
    }
    *ret = (struct task_child){.task = t,
                               .room = room,
                               .pid = pid,
                               .channel = pair[0],
                               .until = pb_now_ns() + limit_ms * PB_NS_PER_MS};
    return 0;
}

/* Waits for a killed child. One in an uninterruptible sleep is left behind: the caller must not wait for
 * it. */
static void reap_child(pid_t pid)
{
    struct pb_retry again =
        pb_retry_until(pb_now_ns() + REAP_MS * PB_NS_PER_MS, PB_NS_PER_MS / 20, 5 * PB_NS_PER_MS);
    pid_t r;

    while ((r = waitpid(pid, NULL, WNOHANG)) == 0 || (r < 0 && errno == EINTR))
        if (!pb_retry_wait(&again))
            return;
}

/* What became of a child that ended without an answer: a moment is enough, its channel is closed already. */
static void say_death(struct task_child *c, char *ret, size_t size)
{
    struct pb_retry again =
        pb_retry_until(pb_now_ns() + DEATH_MS * PB_NS_PER_MS, PB_NS_PER_MS / 20, 5 * PB_NS_PER_MS);
    int status;
    pid_t r;

    while ((r = waitpid(c->pid, &status, WNOHANG)) == 0 || (r < 0 && errno == EINTR))
        if (!pb_retry_wait(&again))
            break;
    if (r > 0) {
        c->pid = 0;
        snprintf(ret, size,
                 WIFSIGNALED(status) ? "the child process that read it was ended by signal %d"
                                     : "the child process that read it ended with status %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    } else {
        snprintf(ret, size, "the child process that read it closed its channel");
    }
}

static void end_child(struct task_child *c, int result, const char *why)
{
    struct pb_task *t = c->task;

    if (why) {
        fail_task(t, result, why);
    } else {
        t->result = c->room->result;
        t->err = c->room->err;
        t->err.text[sizeof(t->err.text) - 1] = '\0';
    }
    if (c->pid) {
        kill(c->pid, SIGKILL);
        reap_child(c->pid);
    }
    close(c->channel);
    if (t->result >= 0 || t->keep_room)
        t->room = c->room;
    else
        pb_room_free(c->room);
    if (t->result >= 0)
        return;
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
}

static void say_end(const struct pb_ask *ask, const struct pb_task *t, int reason, char *ret, size_t size)
{
    unsigned ms = ask && ask->limit_ms ? ask->limit_ms : t->limit_ms;

    if (reason == -ECANCELED)
        snprintf(ret, size, "cancelled");
    else if (ms < 1000)
        snprintf(ret, size, "timed out: no answer within %u ms", ms);
    else
        snprintf(ret, size, "timed out: no answer within %u s", ms / 1000);
}

/* Sends SIGTERM to a gentle task that has not got it yet. True: it was sent, and the child may go on for a
 * while. */
static bool ask_to_end(struct task_child *c, int reason)
{
    if (!c->task->gentle || c->ending)
        return false;
    c->ending = reason;
    c->until = pb_now_ns() + GENTLE_MS * PB_NS_PER_MS;
    kill(c->pid, SIGTERM);
    return true;
}

/* False: out of descriptors. */
static bool take_fd(struct msghdr *m, struct pb_task *t)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
            if (t->fd >= 0)
                close(t->fd);
            memcpy(&t->fd, CMSG_DATA(h), sizeof(int));
        }
    return !(m->msg_flags & MSG_CTRUNC);
}

/* False: the child has ended. */
static bool read_message(const struct pb_ask *ask, struct task_child *c)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    char text[NOTE_MAX];
    struct iovec data = {text, sizeof(text) - 1};
    struct msghdr m = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

    ssize_t n = recvmsg(c->channel, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    if (n <= 0 || text[0] == SAYS_DONE) {
        /* The child's own result counts, also after SIGTERM. */
        char why[64] = "";
        if (c->ending)
            say_end(ask, c->task, c->ending, why, sizeof(why));
        else if (n <= 0)
            say_death(c, why, sizeof(why));
        end_child(c, c->ending ? c->ending : -ECHILD, n > 0 ? NULL : why);
        return false;
    }
    if (text[0] == SAYS_MORE && n == 1 + (ssize_t)sizeof(unsigned)) {
        unsigned limit_ms;
        memcpy(&limit_ms, text + 1, sizeof(limit_ms));
        c->until = pb_now_ns() + limit_ms * PB_NS_PER_MS;
        return true;
    }
    text[n] = '\0';
    if (text[0] != SAYS_FD) {
        pb_ask_note(ask, "%s", text + 1);
    } else if (!take_fd(&m, c->task)) {
        end_child(c, -EMFILE, "too many open files (ulimit -n)");
        return false;
    }
    return true;
}

/* Waits for messages, at most until the first deadline. False: cancelled. cancel NULL: it cannot be
 * cancelled, or was already. */
static bool await_messages(const int *cancel, struct task_child *children, size_t n, struct pollfd *waited)
{
    uint64_t now = pb_now_ns(), until = children[0].until;

    for (size_t i = 0; i < n; i++) {
        waited[i] = (struct pollfd){.fd = children[i].channel, .events = POLLIN};
        until = children[i].until < until ? children[i].until : until;
    }
    waited[n] = (struct pollfd){.fd = cancel ? *cancel : -1, .events = POLLIN};
    uint64_t left_ms = until > now ? (until - now + PB_NS_PER_MS - 1) / PB_NS_PER_MS : 0;
    if (poll(waited, (nfds_t)n + 1, left_ms < INT_MAX ? (int)left_ms : INT_MAX) < 0)
        for (size_t i = 0; i <= n; i++)
            waited[i].revents = 0;
    return !waited[n].revents;
}

/* Reads the children's messages, and ends those past their deadline. Returns how many still run. */
static size_t serve_children(const struct pb_ask *ask, struct task_child *children, size_t n,
                             const struct pollfd *waited, bool wanted)
{
    uint64_t now = pb_now_ns();
    size_t kept = 0;
    char why[64];

    for (size_t i = 0; i < n; i++) {
        struct task_child *c = &children[i];
        if (waited[i].revents && !read_message(ask, c))
            continue;
        int reason = now >= c->until ? -ETIMEDOUT : !wanted && !c->ending ? -ECANCELED : 0;
        if (!reason || ask_to_end(c, reason)) {
            children[kept++] = *c;
            continue;
        }
        reason = c->ending ? c->ending : reason;
        say_end(ask, c->task, reason, why, sizeof(why));
        end_child(c, reason, why);
    }
    return kept;
}

static void run_apart(const struct pb_ask *ask, struct pb_task *tasks, size_t n, size_t parallel)
{
    struct task_child children[PARALLEL];
    struct pollfd waited[PARALLEL + 1];
    size_t running = 0, started = 0;
    bool wanted = true;

    while (running || started < n) {
        while (wanted && started < n && running < parallel)
            running += start_child(ask, &tasks[started++], &children[running]) == 0;
        for (; !wanted && started < n; started++) {
            clear_task(&tasks[started]);
            fail_task(&tasks[started], -ECANCELED, "cancelled");
        }
        if (!running)
            continue;
        wanted = await_messages(ask && wanted ? ask->cancel : NULL, children, running, waited) && wanted;
        running = serve_children(ask, children, running, waited, wanted);
    }
}

static void run_here(const struct pb_ask *ask, struct pb_task *t)
{
    struct pb_room *room = make_room(t->room_size + sizeof(*room));

    clear_task(t);
    if (!room) {
        fail_task(t, -ENOMEM, "out of memory");
        return;
    }
    t->result = t->work(ask, t->arg, room, &t->err);
    if (t->result >= 0) {
        t->room = room;
        t->fd = room->fd;
        return;
    }
    if (room->fd >= 0)
        close(room->fd);
    pb_room_free(room);
}

void pb_tasks_run(const struct pb_ask *ask, struct pb_task *tasks, size_t n, size_t parallel)
{
    if (!ask || !ask->in_child || (n && tasks[0].always))
        run_apart(ask, tasks, n, parallel && parallel < PARALLEL ? parallel : PARALLEL);
    else
        for (size_t i = 0; i < n; i++)
            run_here(ask, &tasks[i]);
}

int pb_task_run(const struct pb_ask *ask, struct pb_task *task, struct pb_err *err)
{
    pb_tasks_run(ask, task, 1, 1);
    if (err)
        *err = task->err;
    return task->result;
}

/* --- many items, one child --- */

struct each_part {
    const struct pb_each *each;
    size_t from;
};

/* Runs in the child: the items from `from` on. Each result is visible to the caller at once, since the next
 * item may get the child killed. */
static int work_each(const struct pb_ask *ask, void *arg, struct pb_room *room, struct pb_err *err)
{
    const struct each_part *part = arg;
    const struct pb_each *each = part->each;
    struct pb_each_answer *at = pb_room_alloc(room, (each->n - part->from) * sizeof(*at));

    if (!at)
        return -ENOMEM;
    pb_task_answer(room, at);
    for (size_t i = 0; part->from + i < each->n; i++) {
        at[i].result = each->work(ask, each->arg, part->from + i, room, &at[i].answer);
        if (at[i].result == -ENOSPC && i > 0)
            return 0;
        __atomic_store_n(&room->done, i + 1, __ATOMIC_RELEASE);
    }
    return 0;
}

/* Waits until the child has ended, or has taken too long for one item. */
static void follow_each(const struct pb_ask *ask, struct task_child *c, unsigned limit_ms)
{
    struct pollfd waited[2];
    size_t seen = 0;

    for (;;) {
        c->until = pb_now_ns() + limit_ms * PB_NS_PER_MS;
        while (pb_now_ns() < c->until) {
            if (!await_messages(ask ? ask->cancel : NULL, c, 1, waited)) {
                end_child(c, -ECANCELED, "cancelled");
                return;
            }
            if (waited[0].revents && !read_message(ask, c))
                return;
        }
        size_t done = __atomic_load_n(&c->room->done, __ATOMIC_ACQUIRE);
        if (done == seen) {
            end_child(c, -ETIMEDOUT, "timed out");
            return;
        }
        seen = done;
    }
}

/* Runs items in one child until it ends. *from becomes the first item of the next child. */
static int run_part(const struct pb_ask *ask, struct pb_each *each, size_t *from)
{
    struct each_part part = {each, *from};
    struct pb_task task = {.work = work_each,
                           .arg = &part,
                           .room_size = each->room_size + (each->n - *from) * sizeof(struct pb_each_answer),
                           .keep_room = true};
    unsigned limit_ms =
        ask && ask->limit_ms && ask->limit_ms < each->limit_ms ? ask->limit_ms : each->limit_ms;
    struct task_child child;

    if (start_child(ask, &task, &child) < 0)
        return task.result;
    follow_each(ask, &child, limit_ms);
    each->rooms[each->nrooms++] = task.room;
    size_t done = task.room->done;
    const struct pb_each_answer *at = task.room->answer;
    for (size_t i = 0; at && i < done; i++)
        each->at[*from + i] = at[i];
    *from += done;
    if (task.result == -ENOMEM || task.result == -ECANCELED)
        return task.result;
    if (task.result < 0 && *from < each->n)
        each->at[(*from)++] = (struct pb_each_answer){.result = task.result};
    return 0;
}

int pb_each_run(const struct pb_ask *ask, struct pb_each *each)
{
    int r = 0;

    each->nrooms = 0;
    each->at = calloc(each->n + 1, sizeof(*each->at));
    each->rooms = calloc(each->n + 1, sizeof(struct pb_room *));
    if (!each->at || !each->rooms)
        return -ENOMEM;
    for (size_t from = 0; r == 0 && from < each->n;)
        r = run_part(ask, each, &from);
    return r;
}

void pb_each_done(struct pb_each *each)
{
    for (size_t i = 0; i < each->nrooms; i++)
        pb_room_free(each->rooms[i]);
    free(each->rooms);
    free(each->at);
    each->rooms = NULL;
    each->at = NULL;
    each->nrooms = 0;
}
