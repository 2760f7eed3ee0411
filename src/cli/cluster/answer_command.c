/* answer_command: a command of this program for each rank of a node; see answer.h.
 *
 * Each runs in a child, all at once, as --all does; what each prints is kept apart and sent when it has
 * ended, so that the asking end can tell ranks which say the same from those which do not. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "cli/cluster/answer.h"
#include "cli/fanout.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_MAX = 8 << 20, MARGIN_MS = 150, PUT_BACK_MS = 100 };

struct child {
    pid_t pid; /* 0: it has been waited for */
    int fds[2];
    struct pb_bytes said[2];
    bool cut, late;
    int status;
};

static void child_done(struct child *c)
{
    for (int k = 0; k < 2; k++) {
        if (c->fds[k] >= 0)
            close(c->fds[k]);
        free(c->said[k].at);
    }
}

static int start_child(const struct pb_answering *a, const struct pb_cluster_rank *rank, struct child *ret)
{
    int pipes[2][2];

    for (int k = 0; k < 2; k++)
        if (pipe2(pipes[k], O_CLOEXEC) < 0)
            return -errno;
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        const char *line[PB_WIRE_WORDS + 4] = {"probing", "-t"};
        char target[16];
        size_t n = 3;
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* and not SIGKILL: injection puts things back */
        if (getppid() != parent)
            _exit(1);
        signal(SIGPIPE, SIG_DFL);
        snprintf(target, sizeof(target), "%d", (int)rank->pid);
        line[2] = target;
        for (size_t i = 1; i < a->question->nwords; i++)
            line[n++] = a->question->words[i];
        dup2(pipes[0][1], STDOUT_FILENO);
        dup2(pipes[1][1], STDERR_FILENO);
        for (int k = 0; k < 2; k++) {
            close(pipes[k][0]);
            close(pipes[k][1]);
        }
        int null = open("/dev/null", O_RDONLY);
        dup2(null, STDIN_FILENO);
        int status = pb_run_line((int)n, (char **)line);
        fflush(NULL);
        _exit(status);
    }
    for (int k = 0; k < 2; k++) {
        close(pipes[k][1]);
        fcntl(pipes[k][0], F_SETFL, O_NONBLOCK);
        ret->fds[k] = pipes[k][0];
    }
    ret->pid = pid;
    return 0;
}

static void take_said(struct child *c, int k)
{
    char bytes[16384];
    ssize_t n = read(c->fds[k], bytes, sizeof(bytes));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        close(pb_take_fd(c->fds[k]));
        return;
    }
    size_t room = OUTPUT_MAX - c->said[k].n, take = (size_t)n < room ? (size_t)n : room;
    char *more = take ? realloc(c->said[k].at, c->said[k].n + take) : NULL;
    c->cut = c->cut || take < (size_t)n || !more;
    if (!more)
        return;
    memcpy(more + c->said[k].n, bytes, take);
    c->said[k].at = more;
    c->said[k].n += take;
}

/* Until all have ended, or the time is over; then they are told to end. */
static int follow(const struct pb_answering *a, struct child *all, size_t n)
{
    _cleanup_free_ struct pollfd *p = calloc(2 * n, sizeof(*p));
    uint64_t end = a->deadline_ns - MARGIN_MS * PB_NS_PER_MS;
    bool told = false;

    if (!p)
        return -ENOMEM;
    for (;;) {
        size_t open = 0;
        for (size_t i = 0; i < 2 * n; i++) {
            p[i] = (struct pollfd){.fd = all[i / 2].fds[i % 2], .events = POLLIN};
            open += p[i].fd >= 0;
        }
        uint64_t now = pb_now_ns();
        if (!open || (told && now >= end))
            return 0;
        if (now >= end) {
            for (size_t i = 0; i < n; i++)
                if (all[i].fds[0] >= 0 || all[i].fds[1] >= 0) {
                    all[i].late = true;
                    kill(all[i].pid, SIGTERM);
                }
            told = true;
            end = now + PUT_BACK_MS * PB_NS_PER_MS;
            continue;
        }
        if (poll(p, (nfds_t)(2 * n), (int)((end - now) / PB_NS_PER_MS) + 1) < 0 && errno != EINTR)
            return -errno;
        for (size_t i = 0; i < 2 * n; i++)
            if (p[i].fd >= 0 && p[i].revents)
                take_said(&all[i / 2], (int)(i % 2));
    }
}

static void put_child(const struct pb_answering *a, const struct pb_cluster_rank *rank, struct child *c)
{
    static const char late[] = "no answer by the deadline\n", cut[] = "the rest of its output was left out\n";
    int status = 0;

    /* A child that puts things back in its target goes on after us: it was told to end. */
    pid_t ended = c->pid ? waitpid(c->pid, &status, c->late ? WNOHANG : 0) : 0;
    status = ended <= 0 ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pb_answer_rank(a->out, rank, a->members->world);
    pb_answer_bytes(a->out, false, c->said[0].at, c->said[0].n);
    pb_answer_bytes(a->out, true, c->said[1].at, c->said[1].n);
    if (c->late)
        pb_answer_bytes(a->out, true, late, strlen(late));
    if (c->cut)
        pb_answer_bytes(a->out, true, cut, strlen(cut));
    pb_answer_exit(a->out, c->late ? 124 : status);
}

int pb_answer_command(const struct pb_answering *a, struct pb_err *err)
{
    size_t n = a->members->n, started = 0;
    _cleanup_free_ struct child *all = calloc(n + 1, sizeof(*all));
    const struct pb_command *command =
        a->question->nwords > 1 ? pb_command_find(a->question->words[1]) : NULL;
    int r = 0;

    if (!all)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (!command || !(command->flags & PB_CMD_CLUSTER))
        return pb_fail(err, -EINVAL, "this is no command for a cluster");
    for (; r == 0 && started < n; started++) {
        all[started].fds[0] = all[started].fds[1] = -1;
        r = start_child(a, &a->members->at[started], &all[started]);
    }
    if (r == 0 && n)
        r = follow(a, all, n);
    for (size_t i = 0; r == 0 && i < n; i++)
        put_child(a, &a->members->at[i], &all[i]);
    for (size_t i = 0; i < started; i++)
        child_done(&all[i]);
    return r < 0 ? pb_fail(err, r, "the command cannot be started: %s", strerror(-r)) : 0;
}
