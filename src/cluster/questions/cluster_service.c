/* cluster_service: the user's services on the nodes of a cluster: found, started, ended; see
 * cluster_service.h.
 *
 * There is one for a user and node. Its token is made there and read from its folder: it comes to the asking
 * end in the answer, and is on no command line and in no environment. A service that was started for a
 * cluster has the cluster's mark in its environment, by which it is known again.
 *
 * Each node starts a service if none runs, and answers with its address and token. A service is used only
 * after it has answered a request from here. srun kills what its step started when the step ends, so under
 * SLURM one step stays for all services, held by an srun that keeps running here. */
#include "cluster/questions/cluster_service.h"

#include "base/cleanup.h"
#include "base/ending.h"
#include "base/err.h"
#include "base/host_port.h"
#include "base/null.h"
#include "base/procfs.h"
#include "base/time.h"
#include "cluster/link/link.h"
#include "cluster/link/run_program.h"
#include "cluster/link/serve_program.h"
#include "cluster/questions/cluster_answer.h"
#include "cluster/questions/cluster_clock.h"
#include "control/identity.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/memfd.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What a node is asked to do with it: see cluster_answer.h. */
enum verb { FIND, START, HOLD, WAIT, END, VERBS };
static const char *const verbs[VERBS] = {"find", "start", "hold", "wait", "end"};

/* --- the node --- */

#define MARK_VARIABLE "PROBING_SERVED_FOR"
enum { PATH_SIZE = 4096, TEXT_MAX = 65536, START_MS = 5000, END_MS = 5000, AGAIN_MS = 20 };

/* srun brings the environment of where it was started, whose runtime folder this node may not have. */
static void drop_foreign_runtime(void)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;

    if (runtime && (stat(runtime, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid()))
        unsetenv("XDG_RUNTIME_DIR");
}

/* pid is 0 if no service runs, or if it does not listen yet. */
static struct pb_own_service find_service(void)
{
    struct pb_own_service own;

    return pb_own_service_find(&own) == 0 && own.url[0] && own.token[0] ? own : (struct pb_own_service){0};
}

static bool is_marked(pid_t pid, const char *mark)
{
    _cleanup_free_ char *environment = NULL;
    size_t n = 0, name = strlen(MARK_VARIABLE "=");

    if (pb_proc_slurp(pid, "environ", &environment, &n) < 0)
        return false;
    for (size_t at = 0; at < n; at += strlen(environment + at) + 1)
        if (strncmp(environment + at, MARK_VARIABLE "=", name) == 0)
            return strcmp(environment + at + name, mark) == 0;
    return false;
}

/* --- the address --- */

/* The address that this node has on the way to that one; nothing is sent. False: there is no way, or it is
 * this machine's own. */
static bool find_own_address(const char *towards, char *ret, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV},
                    *found = NULL;
    struct sockaddr_storage own;
    socklen_t n = sizeof(own);
    char host[64];

    if (getaddrinfo(towards, "9", &hints, &found) != 0)
        return false;
    _cleanup_close_ int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
              getsockname(fd, (struct sockaddr *)&own, &n) == 0 && !pb_is_loopback((struct sockaddr *)&own) &&
              getnameinfo((struct sockaddr *)&own, n, host, sizeof(host), NULL, 0, NI_NUMERICHOST) == 0;
    freeaddrinfo(found);
    if (ok)
        snprintf(ret, size, own.ss_family == AF_INET6 ? "[%s]:0" : "%s:0", host);
    return ok;
}

/* The address to offer: the one facing the launcher, if its environment has one; else the one facing an
 * address of the asking end; else loopback, for an asking end on this machine. */
static int choose_address(const struct pb_node_question *q, char *ret, size_t size, struct pb_err *err)
{
    const char *ssh = getenv("SSH_CONNECTION"), *srun = getenv("SLURM_LAUNCH_NODE_IPADDR");
    char client[64] = "";

    if (ssh && sscanf(ssh, "%63s", client) == 1 && find_own_address(client, ret, size))
        return 0;
    if (srun && find_own_address(srun, ret, size))
        return 0;
    for (size_t i = 3; i < q->nwords; i++)
        if (find_own_address(q->words[i], ret, size))
            return 0;
    if (q->nwords > 3)
        return pb_fail(err, -EHOSTUNREACH, "it has no address towards the machine that asks");
    snprintf(ret, size, "127.0.0.1:0");
    return 0;
}

/* --- requests --- */

/* The launcher has made this process one of its tasks; a service is no rank. */
static void drop_rank(void)
{
    struct pb_identity id;
    char name[64];

    for (char **entry = environ; entry && *entry;) {
        pb_identity_read(*entry, strlen(*entry), &id);
        bool rank = false;
        for (int i = PB_ID_RANK; i < PB_ID_FIELDS; i++)
            rank = rank || id.value[i][0];
        if (rank && sscanf(*entry, "%63[^=]", name) == 1 && unsetenv(name) == 0)
            entry = environ;
        else
            entry++;
    }
}

static int start_service(const struct pb_node_question *q, bool hold, struct pb_err *err)
{
    char address[80], path[PATH_SIZE];
    const char *background[] = {path, "--background", "--", address, NULL},
               *words[] = {"probing-serve", "--", address, NULL};
    _cleanup_free_ char *ignored = NULL;
    size_t n;

    int r = choose_address(q, address, sizeof(address), err);
    if (r == 0)
        r = pb_serve_path(path, sizeof(path));
    if (r < 0)
        return r;
    drop_rank();
    if (setenv(MARK_VARIABLE, q->words[2], 1) < 0)
        return pb_fail(err, -ENOMEM, "out of memory");
    if (!hold)
        return pb_run_program(background, TEXT_MAX, START_MS, &ignored, &n, err);
    pb_null_over(STDIN_FILENO, STDOUT_FILENO); /* it prints its token */
    return pb_serve_become(words, err);
}

static int end_service(const struct pb_own_service *own, const char *mark, struct pb_err *err)
{
    struct pb_ending service;

    if (!own->pid || pb_ending_open(own->pid, 0, &service) < 0)
        return 0;
    int r = is_marked(own->pid, mark) ? pb_ending_signal(&service, SIGTERM) : -ESRCH;
    if (r == 0)
        r = pb_ending_wait(&service, END_MS);
    pb_ending_close(&service);
    if (r == -ETIMEDOUT)
        return pb_fail(err, r, "its service (process %d) did not exit within %d s of SIGTERM", (int)own->pid,
                       END_MS / 1000);
    return r < 0 && r != -ESRCH
               ? pb_fail(err, r, "its service (process %d) cannot be ended: %s", (int)own->pid, strerror(-r))
               : 0;
}

int pb_answer_service(const struct pb_answering *a, struct pb_err *err)
{
    const struct pb_node_question *q = a->question;
    uint64_t end = pb_now_ns() + START_MS * PB_NS_PER_MS;
    char text[PB_SERVICE_PATH + PB_SERVICE_TOKEN + 16];
    int r = 0;

    if (q->nwords < 3)
        return pb_fail(err, -EINVAL, "usage: service find|start|hold|wait|end MARK");
    const char *mark = q->words[2];
    int verb = FIND;
    while (verb < VERBS && strcmp(verbs[verb], q->words[1]) != 0)
        verb++;
    if (verb == VERBS)
        return pb_fail(err, -ENOSYS, "probing %s here cannot '%s' a service", PROBING_VERSION, q->words[1]);
    end = end < a->deadline_ns - AGAIN_MS * PB_NS_PER_MS ? end : a->deadline_ns - AGAIN_MS * PB_NS_PER_MS;
    drop_foreign_runtime();
    struct pb_own_service own = find_service();
    if (verb == END)
        return end_service(&own, mark, err);
    if (!own.pid && (verb == HOLD || verb == START)) {
        r = start_service(q, verb == HOLD, err);
        own = r == 0 ? find_service() : own;
    }
    while (!own.pid && verb == WAIT && pb_now_ns() < end) {
        pb_sleep_ns(AGAIN_MS * PB_NS_PER_MS);
        own = find_service();
    }
    if (r == 0 && own.pid) {
        snprintf(text, sizeof(text), "%s %s %s", own.url, own.token,
                 is_marked(own.pid, mark) ? "own" : "other");
        pb_answer_bytes(a->out, false, text, strlen(text));
    }
    return r;
}

/* --- the asking end --- */

enum { OWN_ADDRESSES = 6, VERIFY_MS = 2000 };

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

static size_t make_words(const struct serving *s, enum verb verb, const char **ret)
{
    size_t n = 0;

    ret[n++] = "service";
    ret[n++] = verbs[verb];
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
static int ask_services(struct serving *s, enum verb verb, unsigned limit_ms, struct pb_err *err)
{
    const char *words[3 + OWN_ADDRESSES];
    _cleanup_(pb_cluster_result_done) struct pb_cluster_result result = {0};
    struct pb_cluster_question q = {.selection = &s->s,
                                    .words = words,
                                    .nwords = make_words(s, verb, words),
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
    char last[200];
    size_t length;

    select_nodes(s, has_none);
    if (!s->s.asked)
        return 0;
    question.nwords = make_words(s, HOLD, words);
    _cleanup_close_ int errors = (int)syscall(SYS_memfd_create, "probing-launcher", MFD_CLOEXEC);
    int r = errors < 0 ? -errno : pb_question_encode(&question, &line, &length);
    if (r < 0)
        return pb_fail(err, r, "the services cannot be started: %s", strerror(-r));
    const struct pb_link_plan plan = {
        .c = s->c, .selection = &s->s, .question = line, .length = length, .holds = true};
    r = pb_link_hold(&plan, errors, err);
    if (r == 0)
        r = ask_services(s, WAIT, limit_ms, err);
    read_errors(errors, last, sizeof(last));
    for (size_t i = 0; i < s->s.nnodes; i++)
        if (s->s.node[i] && !s->at[i].there && !s->at[i].why[0])
            snprintf(s->at[i].why, sizeof(s->at[i].why), "it was not started in time%s%.200s",
                     last[0] ? ": " : "", last);
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

/* The reasons, and what was started and is of no use is ended. */
static void take_reasons(struct serving *s, unsigned limit_ms, struct pb_node_reason *ret)
{
    struct pb_err ignored = {0};

    for (size_t i = 0; i < s->c->nnodes; i++)
        snprintf(ret[i].text, sizeof(ret[i].text), "%s", s->at[i].why);
    select_nodes(s, is_useless);
    ask_services(s, END, limit_ms, &ignored);
}

int pb_cluster_serve(struct pb_cluster *c, const struct pb_cluster_result *looked, unsigned limit_ms,
                     struct pb_node_reason **ret, struct pb_err *err)
{
    _cleanup_(serving_done) struct serving s = {0};
    _cleanup_free_ struct pb_node_reason *reasons = calloc(c->nnodes + 1, sizeof(*reasons));
    bool hold = pb_way_must_hold(c->way);

    int r = reasons ? open_serving(c, &s, err) : pb_fail(err, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < s.s.nnodes; i++)
        if (s.s.node[i] && looked->nodes[i].state != PB_NODE_ANSWERED) {
            s.s.node[i] = false;
            s.s.asked--;
        }
    if (r == 0)
        r = ask_services(&s, hold ? FIND : START, limit_ms, err);
    if (r == 0 && hold)
        r = hold_services(&s, limit_ms, err);
    if (r == 0)
        r = verify_services(&s, err);
    if (r < 0)
        return r;
    take_reasons(&s, limit_ms, reasons);
    *ret = pb_take_ptr(reasons);
    return 0;
}

int pb_cluster_end_services(struct pb_cluster *c, unsigned limit_ms, struct pb_node_reason **ret,
                            struct pb_err *err)
{
    _cleanup_(serving_done) struct serving s = {0};
    _cleanup_free_ struct pb_node_reason *reasons = calloc(c->nnodes + 1, sizeof(*reasons));

    int r = reasons ? open_serving(c, &s, err) : pb_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = ask_services(&s, END, limit_ms, err);
    for (size_t i = 0; r == 0 && i < c->nnodes; i++)
        snprintf(reasons[i].text, sizeof(reasons[i].text), "%s", s.at[i].why);
    if (r == 0)
        *ret = pb_take_ptr(reasons);
    return r;
}
