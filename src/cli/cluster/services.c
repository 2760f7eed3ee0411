/* services: services on the nodes of a cluster, started by its launcher; see job.h.
 *
 * Each node starts a service if none runs, and answers with its address and token. A service is used only
 * after it has answered a request from here. srun kills what its step started when the step ends, so under
 * SLURM one step stays for all services, held by an srun that keeps running here. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_port.h"
#include "cli/cluster/job.h"
#include "cluster/link/link.h"
#include "cluster/questions/clock.h"
#include "print/outlet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/memfd.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OWN_ADDRESSES = 6, SHOWN = 16, VERIFY_MS = 2000 };

struct state {
    bool there, own; /* a service; it was started for this cluster */
    char url[256], token[PB_CLUSTER_TOKEN];
    char why[256]; /* it is not used */
};

struct serving {
    struct pb_cluster *c;
    struct state *at; /* one a node */
    struct pb_selection s;
    char own[OWN_ADDRESSES][64];
    size_t nown;
};

static void serving_done(struct serving *s)
{
    free(s->at);
    pb_selection_done(&s->s);
}

int pb_cluster_mark_services(struct pb_cluster *c, struct pb_err *err)
{
    unsigned char bytes[8];

    if (syscall(SYS_getrandom, bytes, sizeof(bytes), 0) != sizeof(bytes)) /* no wrapper in glibc 2.17 */
        return pb_fail(err, -errno, "no random numbers can be had: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(c->serve + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

/* The addresses of this machine: nodes use them to choose the address that faces us. */
static void find_own_addresses(struct serving *s)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) < 0)
        return;
    for (const struct ifaddrs *i = all; i && s->nown < OWN_ADDRESSES; i = i->ifa_next) {
        const struct sockaddr_in *v4 = (const void *)i->ifa_addr;
        const struct sockaddr_in6 *v6 = (const void *)i->ifa_addr;
        bool is4 = v4 && v4->sin_family == AF_INET;
        bool is6 = v6 && v6->sin6_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
        if ((is4 || is6) && !pb_is_loopback(i->ifa_addr) && i->ifa_flags & IFF_UP &&
            getnameinfo(i->ifa_addr, is4 ? sizeof(*v4) : sizeof(*v6), s->own[s->nown], sizeof(s->own[0]),
                        NULL, 0, NI_NUMERICHOST) == 0)
            s->nown++;
    }
    freeifaddrs(all);
}

static size_t make_words(const struct serving *s, const char *what, const char **ret)
{
    size_t n = 0;

    ret[n++] = "service";
    ret[n++] = what;
    ret[n++] = s->c->serve;
    for (size_t i = 0; s->c->way != PB_WAY_LOCAL && i < s->nown; i++)
        ret[n++] = s->own[i];
    return n;
}

static int take_service(void *arg, size_t node, struct pb_node_answer *answer, struct pb_err *err)
{
    struct serving *s = arg;
    struct state *at = &s->at[node];
    char own[8] = "";

    if (!answer->output.n)
        return 0;
    if (sscanf(answer->output.at, "%255s %127[0-9a-f] %7s", at->url, at->token, own) != 3)
        return pb_fail(err, -EBADMSG, "its answer about its service is malformed");
    at->there = true;
    at->own = strcmp(own, "own") == 0;
    return 0;
}

/* Asks the nodes that are selected. Those that do not answer have no service. */
static int ask_services(struct serving *s, const char *what, unsigned limit_ms, struct pb_err *err)
{
    const char *words[3 + OWN_ADDRESSES];
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    struct pb_cluster_question q = {.selection = &s->s,
                                    .words = words,
                                    .nwords = make_words(s, what, words),
                                    .deadline_ms = limit_ms,
                                    .most = 4096,
                                    .answer = take_service,
                                    .arg = s};

    int r = s->s.asked ? pb_cluster_ask(s->c, &q, &result, err) : 0;
    for (size_t i = 0; r == 0 && i < result.nnodes; i++)
        if (s->s.node[i])
            snprintf(s->at[i].why, sizeof(s->at[i].why), "%.250s", result.nodes[i].why);
    return r;
}

static void select_nodes(struct serving *s, bool (*wanted)(const struct serving *s, size_t node))
{
    s->s.asked = 0;
    for (size_t i = 0; i < s->s.nnodes; i++)
        s->s.asked += s->s.node[i] = wanted(s, i);
}

static bool has_none(const struct serving *s, size_t node)
{
    return s->s.node[node] && !s->at[node].there && !s->at[node].why[0];
}

static bool is_useless(const struct serving *s, size_t node)
{
    return s->at[node].there && s->at[node].own && s->at[node].why[0];
}

/* The launcher's last line. */
static void read_errors(int fd, char *ret, size_t size)
{
    ssize_t n = pread(fd, ret, size - 1, 0);

    ret[n > 0 ? n : 0] = '\0';
    while (n > 0 && strchr(" \r\n", ret[n - 1]))
        ret[--n] = '\0';
    const char *newline = strrchr(ret, '\n');
    if (newline)
        memmove(ret, newline + 1, strlen(newline));
}

/* One step of srun for all services, which lasts as long as they do or the job does. */
static int hold_services(struct serving *s, unsigned limit_ms, struct pb_err *err)
{
    const char *words[3 + OWN_ADDRESSES];
    struct pb_node_question question = {.match = s->c->match, .limit_ms = limit_ms, .words = words};
    _cleanup_free_ char *line = NULL;
    char said[200];
    size_t length;

    select_nodes(s, has_none);
    if (!s->s.asked)
        return 0;
    question.nwords = make_words(s, "hold", words);
    _cleanup_close_ int errors = (int)syscall(SYS_memfd_create, "probing-launcher", MFD_CLOEXEC);
    int r = errors < 0 ? -errno : pb_question_encode(&question, &line, &length);
    if (r < 0)
        return pb_fail(err, r, "the services cannot be started: %s", strerror(-r));
    const struct pb_link_plan plan = {
        .c = s->c, .selection = &s->s, .question = line, .length = length, .holds = true};
    r = pb_link_hold(&plan, errors, err);
    if (r == 0)
        r = ask_services(s, "wait", limit_ms, err);
    read_errors(errors, said, sizeof(said));
    for (size_t i = 0; i < s->s.nnodes; i++)
        if (s->s.node[i] && !s->at[i].there && !s->at[i].why[0])
            snprintf(s->at[i].why, sizeof(s->at[i].why), "it was not started in time%s%.200s",
                     said[0] ? ": " : "", said);
    return r;
}

/* Whether the service can be reached from here, judged by the address that it reported. */
static void check_address(const struct serving *s, struct state *at)
{
    static const char plain[] = "http://";
    struct in6_addr v6;
    struct in_addr v4;
    const char *port;
    char host[128];

    if (strncmp(at->url, plain, strlen(plain)) != 0) {
        snprintf(at->why, sizeof(at->why), "its service speaks TLS, which clusters do not");
        return;
    }
    bool number = pb_host_port_split(at->url + strlen(plain), host, sizeof(host), &port) == 0 &&
                  (inet_pton(AF_INET, host, &v4) == 1 || inet_pton(AF_INET6, host, &v6) == 1);
    if (!number || strlen(at->url) - strlen(plain) >= PB_CLUSTER_SERVICE)
        snprintf(at->why, sizeof(at->why), "its service, %.150s, was started under a name and not an address",
                 at->url);
    else if (pb_host_is_loopback(host) && s->c->way != PB_WAY_LOCAL)
        snprintf(at->why, sizeof(at->why), "your service there, %.150s, answers that node alone", at->url);
}

/* A clock's question to each: what does not answer from here is not used. */
static int verify_services(struct serving *s, struct pb_err *err)
{
    static const char *const words[] = {PB_CLOCK_WORD};
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    struct pb_cluster by_service = *s->c;
    struct pb_cluster_question q = {
        .selection = &s->s, .words = words, .nwords = 1, .deadline_ms = VERIFY_MS, .most = 4096};

    _cleanup_free_ struct pb_cluster_node *nodes = calloc(s->c->nnodes + 1, sizeof(*nodes));
    if (!nodes)
        return pb_fail(err, -ENOMEM, "out of memory");
    by_service.way = PB_WAY_SERVICES;
    by_service.nodes = nodes;
    s->s.asked = 0;
    for (size_t i = 0; i < s->c->nnodes; i++) {
        struct state *at = &s->at[i];
        nodes[i] = s->c->nodes[i];
        if (at->there && !at->why[0])
            check_address(s, at);
        s->s.asked += s->s.node[i] = at->there && !at->why[0];
        if (!s->s.node[i])
            continue;
        strcpy(nodes[i].address, at->url + strlen("http://"));
        strcpy(nodes[i].token, at->token);
    }
    int r = s->s.asked ? pb_cluster_ask(&by_service, &q, &result, err) : 0;
    for (size_t i = 0; r == 0 && i < result.nnodes; i++) {
        if (!s->s.node[i])
            continue;
        if (result.nodes[i].state != PB_NODE_ANSWERED) {
            snprintf(s->at[i].why, sizeof(s->at[i].why),
                     "its service, %.100s, cannot be reached from here: %.100s", s->at[i].url,
                     result.nodes[i].why);
            continue;
        }
        strcpy(s->c->nodes[i].service, nodes[i].address);
        strcpy(s->c->nodes[i].token, nodes[i].token);
    }
    return r;
}

static void tell_services(const struct serving *s)
{
    size_t n = 0, told = 0;
    bool beyond = false;

    for (size_t i = 0; i < s->c->nnodes; i++) {
        n += s->c->nodes[i].service[0] != '\0';
        beyond = beyond || (s->c->nodes[i].service[0] && s->c->way != PB_WAY_LOCAL);
    }
    printf("services on %zu of %zu node%s\n", n, s->c->nnodes, s->c->nnodes == 1 ? "" : "s");
    fflush(stdout);
    for (size_t i = 0; i < s->c->nnodes; i++) {
        if (s->c->nodes[i].service[0] || told++ >= SHOWN)
            continue;
        fprintf(stderr, "note: no service on %s, which is reached by %s instead: ", s->c->nodes[i].name,
                pb_cluster_way_name(s->c->way));
        pb_put_sentence(stderr, s->at[i].why[0] ? s->at[i].why : "the node did not answer");
    }
    if (told > SHOWN)
        fprintf(stderr, "note: and on %zu more nodes\n", told - SHOWN);
    if (beyond)
        fputs("note: the services have no TLS: tokens, questions and answers can be read on the network "
              "between "
              "(probing cluster detach ends them)\n",
              stderr);
}

static int open_serving(struct pb_cluster *c, struct serving *ret, struct pb_err *err)
{
    ret->c = c;
    ret->at = calloc(c->nnodes + 1, sizeof(*ret->at));
    if (!ret->at)
        return pb_fail(err, -ENOMEM, "out of memory");
    /* By the launcher: a service that is to be ended, or that was, does not answer for itself. */
    for (size_t i = 0; i < c->nnodes; i++)
        c->nodes[i].service[0] = c->nodes[i].token[0] = '\0';
    find_own_addresses(ret);
    return pb_select(c, NULL, NULL, &ret->s, err);
}

int pb_cluster_serve(struct pb_cluster *c, const struct pb_cluster_result *looked, unsigned limit_ms,
                     struct pb_err *err)
{
    _cleanup_(serving_done) struct serving s = {0};
    struct pb_err ignored = {0};
    bool hold = pb_way_must_hold(c->way);

    int r = open_serving(c, &s, err);
    for (size_t i = 0; r == 0 && i < s.s.nnodes; i++)
        if (s.s.node[i] && looked->nodes[i].state != PB_NODE_ANSWERED) {
            s.s.node[i] = false;
            s.s.asked--;
        }
    if (r == 0)
        r = ask_services(&s, hold ? "find" : "start", limit_ms, err);
    if (r == 0 && hold)
        r = hold_services(&s, limit_ms, err);
    if (r == 0)
        r = verify_services(&s, err);
    if (r < 0)
        return r;
    tell_services(&s);
    select_nodes(&s, is_useless);
    ask_services(&s, "end", limit_ms, &ignored);
    return 0;
}

bool pb_cluster_end_services(struct pb_cluster *c, unsigned limit_ms)
{
    _cleanup_(serving_done) struct serving s = {0};
    struct pb_err err = {0};
    size_t n = 0;

    int r = open_serving(c, &s, &err);
    if (r == 0)
        r = ask_services(&s, "end", limit_ms, &err);
    if (r < 0)
        pb_put_between(stderr, "note: the services cannot be ended: ", pb_err_text(&err, r), "\n");
    for (size_t i = 0; r == 0 && i < c->nnodes; i++) {
        if (!s.at[i].why[0] || n++ >= SHOWN)
            continue;
        fprintf(stderr, "note: what was started on %s may still run: ", c->nodes[i].name);
        pb_put_sentence(stderr, s.at[i].why);
    }
    if (n > SHOWN)
        fprintf(stderr, "note: and on %zu more nodes\n", n - SHOWN);
    return r == 0 && !n;
}
