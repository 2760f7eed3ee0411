/* cluster_command: a command of this program in each rank; see cluster_command.h.
 *
 * On a node each rank's command runs in a child, all at the same time, as with --all. Output is buffered for
 * each rank and sent when its child exits, so that the asking end can group ranks with equal output. */
#include "cluster/questions/cluster_command.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/null.h"
#include "base/process.h"
#include "base/time.h"
#include "base/vector.h"
#include "cluster/questions/cluster_answer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- the node --- */

enum { OUTPUT_MAX = 8 << 20, MARGIN_MS = 150, PUT_BACK_MS = 100, ROLES_MS = 3000 };

struct child {
    pid_t pid; /* 0: it has been waited for */
    int fds[2];
    struct pb_bytes streams[2];
    bool cut, late;
    int status;
};

static void child_done(struct child *c)
{
    for (int k = 0; k < 2; k++) {
        if (c->fds[k] >= 0)
            close(c->fds[k]);
        free(c->streams[k].at);
    }
}

static int start_child(const struct pb_answer_commands *commands, const struct pb_cluster_rank *rank,
                       const char *const *words, size_t nwords, struct child *ret)
{
    pid_t pid = pb_process_fork_piped(ret->fds);
    if (pid < 0)
        return pid;
    if (pid == 0) {
        const char *line[PB_WIRE_WORDS + 4] = {"probing", "-t"};
        char target[16];
        size_t n = 3;
        signal(SIGPIPE, SIG_DFL);
        snprintf(target, sizeof(target), "%d", (int)rank->pid);
        line[2] = target;
        for (size_t i = 0; i < nwords; i++)
            line[n++] = words[i];
        pb_null_over(STDIN_FILENO, STDIN_FILENO);
        int status = commands->run((int)n, (char **)line);
        fflush(NULL);
        _exit(status);
    }
    for (int k = 0; k < 2; k++)
        fcntl(ret->fds[k], F_SETFL, O_NONBLOCK);
    ret->pid = pid;
    return 0;
}

static void take_output(struct child *c, int k)
{
    char bytes[16384];
    ssize_t n = read(c->fds[k], bytes, sizeof(bytes));

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        close(pb_take_fd(c->fds[k]));
        return;
    }
    size_t room = OUTPUT_MAX - c->streams[k].n, take = (size_t)n < room ? (size_t)n : room;
    char *more = take ? realloc(c->streams[k].at, c->streams[k].n + take) : NULL;
    c->cut = c->cut || take < (size_t)n || !more;
    if (!more)
        return;
    memcpy(more + c->streams[k].n, bytes, take);
    c->streams[k].at = more;
    c->streams[k].n += take;
}

/* Reads the output of all children until they close it. At the deadline they get SIGTERM, and PUT_BACK_MS to
 * restore their targets. */
static int follow(struct child *all, size_t n, uint64_t end)
{
    _cleanup_free_ struct pollfd *p = calloc(2 * n, sizeof(*p));
    bool stopped = false;

    if (!p)
        return -ENOMEM;
    for (;;) {
        size_t open = 0;
        for (size_t i = 0; i < 2 * n; i++) {
            p[i] = (struct pollfd){.fd = all[i / 2].fds[i % 2], .events = POLLIN};
            open += p[i].fd >= 0;
        }
        uint64_t now = pb_now_ns();
        if (!open || (stopped && now >= end))
            return 0;
        if (now >= end) {
            for (size_t i = 0; i < n; i++)
                if (all[i].fds[0] >= 0 || all[i].fds[1] >= 0) {
                    all[i].late = true;
                    kill(all[i].pid, SIGTERM);
                }
            stopped = true;
            end = now + PUT_BACK_MS * PB_NS_PER_MS;
            continue;
        }
        if (poll(p, (nfds_t)(2 * n), (int)((end - now) / PB_NS_PER_MS) + 1) < 0 && errno != EINTR)
            return -errno;
        for (size_t i = 0; i < 2 * n; i++)
            if (p[i].fd >= 0 && p[i].revents)
                take_output(&all[i / 2], (int)(i % 2));
    }
}

struct children {
    struct child *at;
    size_t n;
};

static void children_done(struct children *c)
{
    for (size_t i = 0; i < c->n; i++)
        child_done(&c->at[i]);
    free(c->at);
}

/* A child for each rank; *ret is to be freed on failure too. */
static int run_children(const struct pb_answering *a, const char *const *words, size_t nwords, uint64_t end,
                        struct children *ret)
{
    size_t n = a->members->n;
    int r = 0;

    ret->at = calloc(n + 1, sizeof(*ret->at));
    if (!ret->at)
        return -ENOMEM;
    for (; r == 0 && ret->n < n; ret->n++) {
        ret->at[ret->n].fds[0] = ret->at[ret->n].fds[1] = -1;
        r = start_child(a->commands, &a->members->at[ret->n], words, nwords, &ret->at[ret->n]);
    }
    return r == 0 && n ? follow(ret->at, n, end) : r;
}

static void put_child(const struct pb_answering *a, const struct pb_cluster_rank *rank, struct child *c)
{
    static const char late[] = "no answer by the deadline\n", cut[] = "the rest of its output was left out\n";
    int status = 0;

    /* A child that is restoring its target may outlive us; it has had SIGTERM. */
    pid_t ended = c->pid ? waitpid(c->pid, &status, c->late ? WNOHANG : 0) : 0;
    status = ended <= 0 ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pb_answer_rank(a->out, rank, a->members->world);
    pb_answer_bytes(a->out, false, c->streams[0].at, c->streams[0].n);
    pb_answer_bytes(a->out, true, c->streams[1].at, c->streams[1].n);
    if (c->late)
        pb_answer_bytes(a->out, true, late, strlen(late));
    if (c->cut)
        pb_answer_bytes(a->out, true, cut, strlen(cut));
    pb_answer_exit(a->out, c->late ? 124 : status);
}

/* In the first rank only: for a command that looks at all of the node. */
int pb_answer_once(const struct pb_answering *a, struct pb_err *err)
{
    struct pb_node_members first = *a->members;
    struct pb_answering of = *a;

    first.n = first.n ? 1 : 0;
    of.members = &first;
    return pb_answer_command(&of, err);
}

int pb_answer_command(const struct pb_answering *a, struct pb_err *err)
{
    _cleanup_(children_done) struct children all = {0};

    if (a->question->nwords < 2 || !a->commands->takes_cluster(a->question->words[1]))
        return pb_fail(err, -EINVAL, "this is no command for a cluster");
    int r = run_children(a, a->question->words + 1, a->question->nwords - 1,
                         a->deadline_ns - MARGIN_MS * PB_NS_PER_MS, &all);
    for (size_t i = 0; r == 0 && i < a->members->n; i++)
        put_child(a, &a->members->at[i], &all.at[i]);
    return r < 0 ? pb_fail(err, r, "the command cannot be started: %s", strerror(-r)) : 0;
}

static void take_roles(const struct child *c, struct pb_cluster_rank *rank)
{
    struct pb_roles roles;
    char text[PB_ROLES_TEXT];
    size_t n = c->streams[0].n;

    if (n == 0 || n >= sizeof(text))
        return;
    memcpy(text, c->streams[0].at, n);
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (pb_roles_parse(text, &roles) == 0) /* text of the target: it may hold any bytes */
        rank->roles = roles;
}

void pb_answer_take_roles(const struct pb_answering *a)
{
    static const char *const words[] = {"groups", "--roles", "--timeout", "2"};
    _cleanup_free_ struct pb_cluster_rank *asked = calloc(a->members->n + 1, sizeof(*asked));
    _cleanup_free_ size_t *which = calloc(a->members->n + 1, sizeof(*which));
    _cleanup_(children_done) struct children all = {0};
    struct pb_node_members some = {.at = asked}, all_members = *a->members;
    struct pb_answering of = *a;
    uint64_t end = a->deadline_ns - MARGIN_MS * PB_NS_PER_MS, soon = pb_now_ns() + ROLES_MS * PB_NS_PER_MS;

    pb_members_find_torch(&a->ask, &all_members); /* the list is the same */
    for (size_t i = 0; asked && which && i < a->members->n; i++)
        if (!a->members->at[i].roles.n && a->members->at[i].has_torch) {
            which[some.n] = i;
            asked[some.n++] = a->members->at[i];
        }
    of.members = &some;
    if (!some.n || run_children(&of, words, 4, end < soon ? end : soon, &all) < 0)
        return;
    for (size_t i = 0; i < some.n; i++) {
        take_roles(&all.at[i], &a->members->at[which[i]]);
        if (all.at[i].late)
            kill(all.at[i].pid, SIGTERM);
        waitpid(all.at[i].pid, NULL, all.at[i].late ? WNOHANG : 0);
    }
}

/* --- the asking end --- */

void pb_rank_outputs_done(struct pb_rank_outputs *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free(a->at[i].output);
        free(a->at[i].errors);
    }
    free(a->at);
    pb_cluster_result_done(&a->result);
    *a = (struct pb_rank_outputs){0};
}

static int take_answer(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct pb_rank_outputs *a = arg;

    for (size_t i = 0; i < answer->nranks; i++)
        for (size_t k = 0; k < a->n; k++)
            if (a->at[k].rank.rank == answer->ranks[i].rank.rank)
                return pb_fail(err, -EEXIST, "it answers for rank %d, for which %s has answered",
                               a->at[k].rank.rank, a->c->nodes[a->at[k].rank.node].name);
    for (size_t i = 0; i < answer->nranks; i++) {
        struct pb_answer_part *p = &answer->ranks[i];
        if (pb_grow((void **)&a->at, &a->cap, a->n, sizeof(*a->at), NULL) < 0)
            return pb_fail(err, -ENOMEM, "out of memory");
        struct pb_rank_output *s = &a->at[a->n++];
        *s = (struct pb_rank_output){.rank = p->rank, .status = p->ended ? p->status : 1};
        s->rank.node = (uint32_t)node;
        s->output = pb_take_ptr(p->output.at);
        s->errors = pb_take_ptr(p->errors.at);
        s->noutput = p->output.n;
        s->nerrors = p->errors.n;
    }
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct pb_rank_output *x = a, *y = b;
    return x->rank.rank < y->rank.rank ? -1 : x->rank.rank > y->rank.rank;
}

static int ask_outputs(const char *question, const struct pb_cluster *c, const struct pb_selection *s,
                       const char *const *words, size_t nwords, unsigned limit_ms,
                       struct pb_rank_outputs *ret, struct pb_err *err)
{
    enum { NET_MARGIN_MS = 500 };
    const char *line[PB_WIRE_WORDS + 1] = {question};
    struct pb_cluster_question q = {.selection = s,
                                    .words = line,
                                    .nwords = nwords + 1,
                                    .deadline_ms = limit_ms + NET_MARGIN_MS,
                                    .answer = take_answer,
                                    .arg = ret};

    *ret = (struct pb_rank_outputs){.c = c, .s = s};
    if (nwords >= PB_WIRE_WORDS)
        return pb_fail(err, -E2BIG, "the command line is too long");
    memcpy(line + 1, words, nwords * sizeof(*words));
    int r = pb_cluster_ask(c, &q, &ret->result, err);
    if (r == 0 && ret->n)
        qsort(ret->at, ret->n, sizeof(*ret->at), by_rank);
    return r;
}

int pb_rank_outputs_ask(const struct pb_cluster *c, const struct pb_selection *s, const char *const *words,
                        size_t nwords, unsigned limit_ms, struct pb_rank_outputs *ret, struct pb_err *err)
{
    return ask_outputs("command", c, s, words, nwords, limit_ms, ret, err);
}

int pb_rank_outputs_ask_once(const struct pb_cluster *c, const struct pb_selection *s,
                             const char *const *words, size_t nwords, unsigned limit_ms,
                             struct pb_rank_outputs *ret, struct pb_err *err)
{
    return ask_outputs("once", c, s, words, nwords, limit_ms, ret, err);
}

const struct pb_rank_output *pb_rank_outputs_find(const struct pb_rank_outputs *a, int32_t rank)
{
    const struct pb_rank_output key = {.rank = {.rank = rank}};

    return a->n ? bsearch(&key, a->at, a->n, sizeof(*a->at), by_rank) : NULL;
}
