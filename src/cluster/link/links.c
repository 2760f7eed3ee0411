/* links: links that stay open after their answer, for the next question; see ask_nodes.h and link.h. */
#include "cluster/link/link.h"

#include "base/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { OPEN_MAX_ = 4096 };

struct pb_links {
    size_t nnodes;
    struct pb_idle_link *at[]; /* one a node, then the one of all nodes; NULL: none */
};

int pb_links_new(const struct pb_cluster *c, struct pb_links **ret)
{
    struct pb_links *l = calloc(1, sizeof(*l) + (c->nnodes + 1) * sizeof(struct pb_idle_link *));

    if (!l)
        return -ENOMEM;
    l->nnodes = c->nnodes;
    *ret = l;
    return 0;
}

static struct pb_idle_link **find_place(struct pb_links *l, ssize_t node)
{
    return &l->at[node < 0 ? l->nnodes : (size_t)node];
}

static void close_link(const struct pb_idle_link *k)
{
    close(k->out);
    if (k->errors >= 0)
        close(k->errors);
}

void pb_links_free(struct pb_links *l)
{
    unsigned patience = 100;

    if (!l)
        return;
    /* A child exits when its input closes: close all inputs before waiting for any child. */
    for (size_t i = 0; i <= l->nnodes; i++)
        if (l->at[i])
            close_link(l->at[i]);
    for (size_t i = 0; i <= l->nnodes; i++) {
        if (l->at[i] && l->at[i]->pid)
            pb_link_end(l->at[i]->pid, &patience);
        free(l->at[i]);
    }
    free(l);
}

static int ignore_body(void *arg, const char *bytes, size_t n)
{
    (void)arg, (void)bytes, (void)n;
    return 0;
}

/* What is left of a service's last answer is read now: the end of its last chunk. */
static bool has_ended(struct pb_idle_link *k)
{
    char bytes[4096];

    while (!k->http.ended) {
        ssize_t n = recv(k->out, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n <= 0 || pb_http_take(&k->http, bytes, (size_t)n, ignore_body, NULL) < 0)
            return false;
    }
    return true;
}

bool pb_links_take(struct pb_links *l, ssize_t node, struct pb_idle_link *ret)
{
    struct pb_idle_link **place = find_place(l, node);
    _cleanup_free_ struct pb_idle_link *k = pb_take_ptr(*place);

    if (!k)
        return false;
    if (!k->pid && !has_ended(k)) {
        close_link(k);
        return false;
    }
    *ret = *k;
    return true;
}

bool pb_links_has_child(const struct pb_links *l, size_t node)
{
    return l->at[node] && l->at[node]->pid;
}

void pb_links_put(struct pb_links *l, ssize_t node, const struct pb_idle_link *idle)
{
    struct pb_idle_link **place = find_place(l, node);

    *place = malloc(sizeof(**place));
    if (*place)
        **place = *idle;
    else
        close_link(idle);
}

size_t pb_links_raise_limit(struct rlimit *ret_before)
{
    struct rlimit more;

    getrlimit(RLIMIT_NOFILE, ret_before);
    more = *ret_before;
    more.rlim_cur = more.rlim_max < 3 * OPEN_MAX_ ? more.rlim_max : 3 * OPEN_MAX_;
    if (more.rlim_cur > ret_before->rlim_cur && setrlimit(RLIMIT_NOFILE, &more) < 0)
        more = *ret_before;
    return more.rlim_cur > 256 ? (more.rlim_cur - 64) / 3 : 64;
}
