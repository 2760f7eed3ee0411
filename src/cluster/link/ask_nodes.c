/* ask_nodes: one part of a question: its links, and what comes over them; see ask_part.h. */
#include "base/text.h"
#include "cluster/link/ask_part.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/link/own_service.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PLACES = 128,
    SILENT_MS = 250, /* a node that is not through after that does not hold a place any more */
    MOST = 64 << 20,
    ERRORS_MAX = 1024
};

/* One node's answer on the way: by a link of its own, or as a label of one that serves all. */
struct incoming {
    struct pb_answer_reader reader;
    ssize_t node; /* -1: a label that has not named its node yet */
};

struct link {
    pid_t pid; /* 0: a socket of a service */
    int out, errors;
    bool open, connected, holds_place;
    bool reused, answering; /* the link served an earlier question; part of the answer arrived */
    bool writes;            /* what is waited for is room to write */
    uint64_t started;
    int64_t sent_ns, received_ns; /* as pb_node_result has them */
    char *request;                /* NULL: the launcher was given it */
    size_t sent, length;
    struct pb_http_in http;
    char stderr_tail[ERRORS_MAX]; /* stderr of the launcher, its end */
    size_t ntail;
    struct incoming *in; /* one, or one for each label */
    size_t nin;
    char label[16]; /* of the line that is being read */
    size_t nlabel;
    bool in_line, skip; /* the label is over; it is none */
};

struct pb_ask_part {
    struct pb_link_plan plan;
    const struct pb_cluster_question *q;
    struct pb_cluster_result *result;
    struct link *links;
    size_t nlinks, next, held, open, most_open;
    int epoll;
    uint64_t began;
    size_t left, answered; /* nodes that are not settled, and that answered */
    bool *fallen;          /* pb_ask_part_plan */
    size_t nfallen;
    bool settles_all; /* pb_ask_part_settle_all */
};

static unsigned ms_since(uint64_t ns)
{
    return (unsigned)((pb_now_ns() - ns) / PB_NS_PER_MS);
}

/* --- the end of a node --- */

static bool is_answered(const struct pb_ask_part *a, ssize_t node)
{
    return a->result->nodes[node].state == PB_NODE_ANSWERED;
}

static bool settled(const struct pb_ask_part *a, ssize_t node)
{
    return node >= 0 && (a->result->nodes[node].state != PB_NODE_NOT_ASKED || (a->fallen && a->fallen[node]));
}

static void settle(struct pb_ask_part *a, ssize_t node, enum pb_node_state state, const char *why)
{
    struct pb_node_result *r = &a->result->nodes[node];

    if (settled(a, node))
        return;
    r->state = state;
    r->ms = ms_since(a->began);
    snprintf(r->why, sizeof(r->why), "%s", why);
    pb_text_clean(r->why);
    if (state == PB_NODE_ANSWERED) {
        a->answered++;
        a->result->answered++;
        a->result->last_ms = r->ms;
    }
    a->left--;
}

/* A service that has refused the question, or that was never reached: the launcher is the other way to the
 * node. One that took the question may have acted on it, and is not asked again. */
static bool fall_back(struct pb_ask_part *a, const struct link *l)
{
    ssize_t node = l->in->node;

    if (!a->fallen || a->settles_all || l->pid || settled(a, node) ||
        (l->connected && (!l->http.status || l->http.status == 200)))
        return false;
    a->fallen[node] = true;
    a->nfallen++;
    a->left--;
    return true;
}

static void end_link(struct pb_ask_part *a, struct link *l)
{
    if (!l->open)
        return;
    l->open = false;
    a->open--;
    a->held -= l->holds_place;
    l->holds_place = false;
    if (l->out >= 0)
        close(l->out);
    if (l->errors >= 0)
        close(l->errors);
    l->out = l->errors = -1;
    free(l->request);
    l->request = NULL;
    for (size_t i = 0; i < l->nin; i++)
        pb_answer_reader_done(&l->in[i].reader);
    free(l->in);
    l->in = NULL;
    l->nin = 0;
}

/* The link stays for the next question, and is not this one's any more. */
static void keep_link(struct pb_ask_part *a, struct link *l, ssize_t node)
{
    const struct pb_idle_link idle = {l->pid, l->out, l->errors, l->http};

    epoll_ctl(a->epoll, EPOLL_CTL_DEL, l->out, NULL);
    if (l->errors >= 0)
        epoll_ctl(a->epoll, EPOLL_CTL_DEL, l->errors, NULL);
    pb_links_put(a->q->links, node, &idle);
    l->pid = 0;
    l->out = l->errors = -1;
}

/* A whole answer. */
static void hand_over(struct pb_ask_part *a, const struct link *l, struct incoming *in)
{
    struct pb_err err = {0};
    struct pb_node_answer *answer = &in->reader.answer;
    struct pb_node_result *result = &a->result->nodes[in->node];

    result->bytes = answer->travelled;
    result->sent_ns = l->sent_ns;
    result->received_ns = l->received_ns;
    if (answer->status != 0) {
        settle(a, in->node, PB_NODE_REFUSED, answer->sentence[0] ? answer->sentence : "it could not answer");
        return;
    }
    int r = a->q->answer ? a->q->answer(a->q->arg, (size_t)in->node, answer, &err) : 0;
    settle(a, in->node, r < 0 ? PB_NODE_REFUSED : PB_NODE_ANSWERED, r < 0 ? pb_err_text(&err, r) : "");
    pb_node_answer_done(answer);
}

static void take_failure(struct pb_ask_part *a, struct incoming *in, int r)
{
    if (in->node >= 0)
        settle(a, in->node, r == -EPROTO ? PB_NODE_OTHER_VERSION : PB_NODE_REFUSED, in->reader.why);
}

/* Bytes of a link that is one node's. 1: that was all. */
static int feed(struct pb_ask_part *a, const struct link *l, const char *bytes, size_t n)
{
    struct incoming *in = l->in;

    a->result->bytes += n;
    if (settled(a, in->node))
        return 0; /* the end of a service's last chunk */
    int r = pb_answer_reader_take(&in->reader, bytes, n);
    if (r == 1)
        hand_over(a, l, in);
    else if (r < 0)
        take_failure(a, in, r);
    return r;
}

/* --- links of one node --- */

struct body {
    struct pb_ask_part *a;
    struct link *l;
};

static int take_body(void *arg, const char *bytes, size_t n)
{
    struct body *b = arg;
    struct link *l = b->l;

    if (l->http.status == 200)
        return feed(b->a, l, bytes, n) < 0 ? -EIO : 0;
    size_t room = sizeof(l->stderr_tail) - 1 - l->ntail, take = n < room ? n : room;
    memcpy(l->stderr_tail + l->ntail, bytes, take);
    l->ntail += take;
    l->stderr_tail[l->ntail] = '\0';
    return 0;
}

/* A service that refused. */
static void settle_http(struct pb_ask_part *a, struct link *l)
{
    int status = l->http.status;
    char why[256];

    if (status == 404 || status == 405) {
        settle(a, l->in->node, PB_NODE_OTHER_VERSION, "the service there does not know clusters");
        return;
    }
    if (!pb_service_error(l->stderr_tail, l->ntail, why, sizeof(why)))
        snprintf(why, sizeof(why), "HTTP status %d", status);
    settle(a, l->in->node, PB_NODE_REFUSED, why);
}

/* The launcher's last line that says something. */
static const char *last_line(struct link *l)
{
    while (l->ntail && strchr(" \r\n", l->stderr_tail[l->ntail - 1]))
        l->stderr_tail[--l->ntail] = '\0';
    const char *newline = strrchr(l->stderr_tail, '\n');
    return newline ? newline + 1 : l->stderr_tail;
}

/* True: the launcher could not reach the node. False: the node refused. Judged by the exit status and the
 * last line on stderr. */
static bool is_far(enum pb_cluster_way way, int status, const char *words)
{
    static const char *const gone[] = {"(NotFound)", "Unable to connect", "unable to upgrade connection",
                                       "container not found", "error dialing backend"};

    if (way == PB_WAY_SSH)
        return status == 255 && !strstr(words, "denied");
    for (size_t i = 0; way == PB_WAY_KUBERNETES && i < sizeof(gone) / sizeof(gone[0]); i++)
        if (strstr(words, gone[i]))
            return true;
    return false;
}

static void settle_launched(struct pb_ask_part *a, struct link *l, struct incoming *in)
{
    unsigned patience = 20;
    const char *words = last_line(l);
    int status = pb_link_end(pb_take(l->pid, 0), &patience);
    char why[300];

    if (in->reader.greeted) {
        settle(a, in->node, PB_NODE_UNREACHABLE, "it ended in the middle of its answer");
    } else if (status == PB_EXIT_USAGE) {
        settle(a, in->node, PB_NODE_OTHER_VERSION, "the program there does not know clusters");
    } else if (status == 126 || status == 127 || strstr(l->stderr_tail, "OCI runtime exec failed")) {
        snprintf(why, sizeof(why), "%.200s cannot be started there (attach with --program)",
                 a->plan.c->program);
        settle(a, in->node, PB_NODE_REFUSED, why);
    } else {
        bool far = is_far(a->plan.c->way, status, words);
        snprintf(why, sizeof(why), "%.200s%s", words[0] ? words : "it ended without an answer",
                 words[0] ? "" : " (its standard output is not the program's)");
        settle(a, in->node, far ? PB_NODE_UNREACHABLE : PB_NODE_REFUSED, why);
    }
}

/* The other end is closed. */
static void take_end(struct pb_ask_part *a, struct link *l, int error)
{
    struct incoming *in = l->in;

    if (fall_back(a, l))
        return;
    if (l->pid) {
        settle_launched(a, l, in);
    } else if (error && !in->reader.greeted) {
        settle(a, in->node, PB_NODE_UNREACHABLE, strerror(error));
    } else if (l->http.status && l->http.status != 200 && l->http.state != PB_HTTP_HEAD) {
        settle_http(a, l);
    } else {
        settle(a, in->node, in->reader.greeted ? PB_NODE_UNREACHABLE : PB_NODE_REFUSED,
               in->reader.greeted ? "it ended in the middle of its answer"
                                  : "the server there is not a probing service");
    }
}

/* --- a link of all nodes: "LABEL: bytes" lines, cut wherever the launcher likes --- */

/* The node that a label has named in its first frame. */
static void name_label(struct pb_ask_part *a, struct incoming *in)
{
    if (in->node >= 0 || !in->reader.greeted)
        return;
    for (size_t i = 0; i < a->plan.c->nnodes; i++)
        if (a->plan.selection->node[i] && strcmp(a->plan.c->nodes[i].name, in->reader.answer.node) == 0 &&
            !settled(a, (ssize_t)i))
            in->node = (ssize_t)i;
}

static void feed_label(struct pb_ask_part *a, struct link *l, const char *bytes, size_t n)
{
    size_t label = strtoul(l->label, NULL, 10);

    if (l->skip || label >= l->nin || settled(a, l->in[label].node))
        return;
    struct incoming *in = &l->in[label];
    int r = pb_answer_reader_take(&in->reader, bytes, n);
    name_label(a, in);
    if (r == 1 && in->node >= 0)
        hand_over(a, l, in);
    else if (r < 0)
        take_failure(a, in, r);
}

static void take_labelled(struct pb_ask_part *a, struct link *l, const char *bytes, size_t n)
{
    a->result->bytes += n;
    while (n) {
        if (l->in_line) {
            const char *newline = memchr(bytes, '\n', n);
            size_t piece = newline ? (size_t)(newline - bytes) : n;
            feed_label(a, l, bytes, piece);
            piece += newline != NULL;
            bytes += piece;
            n -= piece;
            l->in_line = !newline;
            l->nlabel = newline ? 0 : l->nlabel;
            continue;
        }
        char c = *bytes++;
        n--;
        if (c == '\n') {
            l->nlabel = 0;
        } else if (c == ':') {
            l->label[l->nlabel] = '\0';
            l->skip = !l->nlabel || strspn(l->label, " 0123456789") != l->nlabel;
            l->in_line = true;
            /* One blank follows; base64 has none, and the reader would not take it. */
        } else if (l->nlabel < sizeof(l->label) - 1) {
            l->label[l->nlabel++] = c;
        }
    }
}

/* --- reading and writing --- */

static void take_errors(struct link *l)
{
    char bytes[4096];
    ssize_t n = read(l->errors, bytes, sizeof(bytes));

    if (n > 0) {
        /* The last of it: what a launcher says in the end is why it failed. */
        size_t keep = (size_t)n < sizeof(l->stderr_tail) - 1 ? (size_t)n : sizeof(l->stderr_tail) - 1;
        size_t old = l->ntail + keep < sizeof(l->stderr_tail) ? l->ntail : sizeof(l->stderr_tail) - 1 - keep;
        memmove(l->stderr_tail, l->stderr_tail + l->ntail - old, old);
        memcpy(l->stderr_tail + old, bytes + n - keep, keep);
        l->ntail = old + keep;
        l->stderr_tail[l->ntail] = '\0';
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        close(pb_take_fd(l->errors));
    }
}

static void settle_all(struct pb_ask_part *a, struct link *l)
{
    for (size_t i = 0; i < l->nin; i++)
        if (l->in[i].node >= 0)
            settle(a, l->in[i].node, PB_NODE_UNREACHABLE, "it ended in the middle of its answer");
    for (size_t i = 0; i < a->plan.c->nnodes; i++)
        if (a->plan.selection->node[i])
            settle(a, (ssize_t)i, PB_NODE_UNREACHABLE,
                   l->ntail ? last_line(l) : "the launcher ended without its answer");
}

static void watch(struct pb_ask_part *a, int fd, uint32_t events, uint64_t which, bool anew)
{
    struct epoll_event e = {.events = events, .data.u64 = which};

    epoll_ctl(a->epoll, anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
}

static void start_anew(struct pb_ask_part *a, struct link *l);

static void read_link(struct pb_ask_part *a, struct link *l)
{
    char bytes[1 << 16];
    struct body body = {a, l};

    ssize_t n = recv(l->out, bytes, sizeof(bytes), MSG_DONTWAIT);
    l->received_ns = pb_wall_ns();
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int error = n < 0 ? errno : 0;
    if (n <= 0 && l->reused && !l->answering) {
        start_anew(a, l);
        return;
    }
    l->answering = true;
    bool labelled = pb_way_is_labelled(a->plan.c->way);
    if (labelled && n > 0) {
        take_labelled(a, l, bytes, (size_t)n);
        return;
    }
    if (n <= 0 && l->errors >= 0)
        take_errors(l); /* the last line of stderr is the reason */
    if (labelled) {
        settle_all(a, l);
    } else if (n <= 0) {
        take_end(a, l, error);
    } else if (l->pid) {
        if (feed(a, l, bytes, (size_t)n) == 0)
            return;
    } else {
        int r = pb_http_take(&l->http, bytes, (size_t)n, take_body, &body);
        if (r == -EBADMSG && !settled(a, l->in->node) && !fall_back(a, l))
            settle(a, l->in->node, PB_NODE_REFUSED, "the server there is not a probing service");
        else if (l->http.ended && !settled(a, l->in->node))
            take_end(a, l, 0);
        if (!settled(a, l->in->node))
            return;
    }
    if (a->plan.keep && n > 0 && !l->http.closes && is_answered(a, l->in->node))
        keep_link(a, l, l->in->node);
    end_link(a, l);
}

static void write_link(struct pb_ask_part *a, struct link *l)
{
    int error = 0;

    if (!l->connected) {
        getsockopt(l->out, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof(error)});
        l->connected = !error;
    }
    if (!l->sent)
        l->sent_ns = pb_wall_ns();
    ssize_t n = error ? -1 : send(l->out, l->request + l->sent, l->length - l->sent, MSG_NOSIGNAL);
    if (!error && n < 0 && (errno == EAGAIN || errno == EINTR))
        n = 0;
    if (n < 0 && (l->pid || l->reused)) {
        l->length = l->sent; /* the child exited: its stderr has the reason */
        read_link(a, l);
        return;
    }
    if (n < 0) {
        int why = error ? error : errno;
        if (!fall_back(a, l))
            settle(a, l->in->node, PB_NODE_UNREACHABLE, strerror(why));
        end_link(a, l);
        return;
    }
    l->sent += (size_t)n;
    a->result->bytes += (size_t)n;
    bool all = l->sent == l->length;
    if (l->writes == all) {
        l->writes = !all;
        watch(a, l->out, all ? EPOLLIN : EPOLLOUT, (uint64_t)(l - a->links) * 2, false);
    }
    if (all && l->pid && !a->plan.keep)
        shutdown(l->out, SHUT_WR);
}

/* --- the loop --- */

/* Gives the link the question. The link is an idle one from an earlier question, or a new one. */
static int open_link(struct pb_ask_part *a, struct link *l, ssize_t node, struct pb_err *err)
{
    struct pb_idle_link idle;
    struct pb_launched launched;
    int r = 0;

    if (pb_way_is_socket(a->plan.c->way)) {
        r = pb_link_request(&a->plan, (size_t)node, &l->request, &l->length);
    } else if (!pb_link_asks_by_environment(&a->plan)) {
        l->request = strdup(a->plan.question);
        l->length = a->plan.length;
        r = l->request ? 0 : -ENOMEM;
    }
    l->sent_ns = pb_wall_ns();
    if (r < 0) {
        return pb_fail(err, r, "out of memory");
    } else if (a->plan.keep && pb_links_take(a->q->links, node, &idle)) {
        l->pid = idle.pid;
        l->out = idle.out;
        l->errors = idle.errors;
        l->connected = l->reused = true;
    } else if (pb_way_is_socket(a->plan.c->way)) {
        r = pb_link_connect(a->plan.c->nodes[node].address, &l->out);
        return r < 0 ? pb_fail(err, r, "%s", strerror(-r)) : 0;
    } else {
        r = pb_link_launch(&a->plan, node, &launched, err);
        if (r < 0)
            return r;
        l->pid = launched.pid;
        l->out = launched.out;
        l->errors = launched.errors;
        l->connected = true;
    }
    return 0;
}

static int start_link(struct pb_ask_part *a, struct link *l, ssize_t node)
{
    struct pb_err err = {0};
    size_t most = a->q->most ? a->q->most : MOST;

    l->nin = node < 0 ? a->plan.selection->asked : 1;
    l->in = calloc(l->nin, sizeof(*l->in));
    l->out = l->errors = -1;
    if (!l->in)
        return -ENOMEM;
    for (size_t i = 0; i < l->nin; i++) {
        pb_answer_reader_init(&l->in[i].reader, most, node < 0);
        l->in[i].node = node;
    }
    int r = open_link(a, l, node, &err);
    l->started = pb_now_ns();
    l->open = true;
    a->open++;
    if (r < 0) {
        bool socket = pb_way_is_socket(a->plan.c->way);
        bool falls = socket && fall_back(a, l);
        for (size_t i = 0; i < a->plan.c->nnodes && !falls; i++)
            if (node < 0 ? a->plan.selection->node[i] : i == (size_t)node)
                settle(a, (ssize_t)i, socket ? PB_NODE_UNREACHABLE : PB_NODE_REFUSED, pb_err_text(&err, r));
        end_link(a, l);
        return 0;
    }
    l->holds_place = true;
    a->held++;
    l->writes = !l->connected;
    watch(a, l->out, l->writes ? EPOLLOUT : EPOLLIN, (uint64_t)(l - a->links) * 2, true);
    if (l->errors >= 0)
        watch(a, l->errors, EPOLLIN, (uint64_t)(l - a->links) * 2 + 1, true);
    if (l->connected && l->length)
        write_link(a, l);
    return 0;
}

/* An idle link that the other end has closed since its last use. */
static void start_anew(struct pb_ask_part *a, struct link *l)
{
    ssize_t node = l->in->node;
    unsigned patience = 0;

    end_link(a, l);
    if (l->pid)
        pb_link_end(l->pid, &patience);
    *l = (struct link){0};
    if (start_link(a, l, node) < 0 && node >= 0)
        settle(a, node, PB_NODE_UNREACHABLE, "out of memory");
}

/* Those that have been silent for long keep their connection and lose their place. In the order in which they
 * were started: the first that is young ends the search. */
static void free_places(struct pb_ask_part *a)
{
    uint64_t now = pb_now_ns();

    for (size_t i = 0; i < a->nlinks && a->held >= PLACES; i++) {
        struct link *l = &a->links[i];
        if (!l->open || !l->holds_place)
            continue;
        if (now - l->started < SILENT_MS * PB_NS_PER_MS)
            return;
        l->holds_place = false;
        a->held--;
    }
}

int pb_ask_part_start(struct pb_ask_part *a)
{
    const struct pb_selection *s = a->plan.selection;

    if (pb_way_is_labelled(a->plan.c->way)) {
        if (a->nlinks || !s->asked)
            return 0;
        return start_link(a, &a->links[a->nlinks++], -1);
    }
    while (a->next < s->nnodes) {
        if (!s->node[a->next]) {
            a->next++;
            continue;
        }
        if (a->held >= PLACES)
            free_places(a);
        if (a->held >= PLACES || a->open >= a->most_open)
            return 0;
        int r = start_link(a, &a->links[a->nlinks++], (ssize_t)a->next++);
        if (r < 0)
            return r;
    }
    return 0;
}

int pb_ask_part_turn(struct pb_ask_part *a)
{
    struct epoll_event events[64];

    int n = epoll_wait(a->epoll, events, 64, 0);
    if (n < 0 && errno != EINTR)
        return -errno;
    for (int i = 0; i < n; i++) {
        struct link *l = &a->links[events[i].data.u64 / 2];
        if (!l->open)
            continue;
        if (events[i].data.u64 % 2)
            take_errors(l);
        else if (l->sent < l->length)
            write_link(a, l);
        else
            read_link(a, l);
    }
    return 0;
}

void pb_ask_part_end(struct pb_ask_part *a)
{
    unsigned patience = 30;

    for (size_t i = 0; i < a->nlinks; i++) {
        struct link *l = &a->links[i];
        for (size_t k = 0; l->open && k < l->nin; k++)
            if (l->in[k].node >= 0 && !settled(a, l->in[k].node))
                settle(a, l->in[k].node,
                       (l->pid ? l->in[k].reader.greeted : l->connected) ? PB_NODE_LATE : PB_NODE_UNREACHABLE,
                       "no whole answer by the deadline");
        if (l->open && l->nin && a->plan.keep && pb_way_is_labelled(a->plan.c->way) &&
            a->answered == a->plan.selection->asked)
            keep_link(a, l, -1);
        end_link(a, l);
        if (l->pid)
            kill(-l->pid, SIGTERM); /* srun tells its tasks; ssh hangs up */
    }
    for (size_t i = 0; i < a->nlinks; i++)
        if (a->links[i].pid)
            pb_link_end(a->links[i].pid, &patience);
    for (size_t i = 0; i < a->plan.selection->nnodes; i++)
        if (a->plan.selection->node[i])
            settle(a, (ssize_t)i, PB_NODE_UNREACHABLE, "nothing came by the deadline");
}

int pb_ask_part_open(const struct pb_ask_part_plan *plan, struct pb_ask_part **ret)
{
    struct pb_ask_part *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    *a = (struct pb_ask_part){.plan = plan->link,
                              .q = plan->q,
                              .result = plan->result,
                              .most_open = plan->most_open,
                              .began = plan->began,
                              .left = plan->link.selection->asked,
                              .fallen = plan->fallen};
    a->links = calloc(a->left + 1, sizeof(*a->links));
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    int r = !a->links ? -ENOMEM : a->epoll < 0 ? -errno : 0;
    if (r < 0) {
        pb_ask_part_free(a);
        return r;
    }
    *ret = a;
    return 0;
}

void pb_ask_part_free(struct pb_ask_part *a)
{
    if (!a)
        return;
    if (a->epoll >= 0)
        close(a->epoll);
    free(a->links);
    free(a);
}

struct pb_ask_part_state pb_ask_part_state(const struct pb_ask_part *a)
{
    bool waits = a->next < a->plan.selection->nnodes && !pb_way_is_labelled(a->plan.c->way);

    return (struct pb_ask_part_state){a->epoll, a->left, a->nfallen, waits};
}

void pb_ask_part_settle_all(struct pb_ask_part *a)
{
    a->settles_all = true;
}
