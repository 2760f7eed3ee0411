/* http: takes in requests, checks them (gate.h), and runs their routes. See service.h and request.h.
 *
 * libmicrohttpd calls pb_http_request with the headers, with each piece of the body, and at its end; the last
 * call is repeated when a suspended connection is resumed. */
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cluster/questions/cluster_clock.h"
#include "control/relay.h"
#include "serve/answer.h"
#include "serve/connections.h"
#include "serve/events.h"
#include "serve/jobs.h"
#include "serve/request.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

struct listener {
    struct pb_service *s;
    struct MHD_Daemon *daemon;
    struct pb_connections *connections;
    bool is_unix;
    char *cert, *key;
};

/* --- events --- */

static ssize_t read_events(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct pb_request *q = cls;
    ssize_t n = pb_subscriber_read(q->events, buf, max);

    (void)pos;
    return n > 0 ? n : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : 0;
}

static enum MHD_Result start_events(struct pb_request *q)
{
    enum { PIECE = 2048 }; /* each client has a buffer of that size */
    const char *topics = pb_request_argument(q, "topics");
    const struct pb_subscription to = {
        .topics = topics ? topics : "",
        .last_id = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, "Last-Event-ID"),
        .suspend = pb_request_suspend,
        .resume = pb_request_resume,
        .arg = q,
        .credentials = q->credentials};
    _cleanup_(pb_words_done) struct pb_words ignored = {0};
    struct pb_err err = {0};

    int r = pb_request_arguments(q, &ignored, &err);
    r = r < 0 ? r : pb_events_subscribe(q->s->events, &to, &q->events, &err);
    if (r < 0)
        return pb_answer_error(q->connection, r == -EINVAL ? 400 : 503, pb_err_text(&err, r), NULL);
    return pb_answer(q->connection, 200,
                     MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE, read_events, q, NULL),
                     q->route->forms->type);
}

/* --- the clock, for a cluster --- */

/* 1: the body asks for the clock; *ret is the answer. */
static int answer_clock(struct pb_request *q, int64_t received_ns, enum MHD_Result *ret)
{
    struct pb_answer_writer w = {.fd = -1};
    char node[PB_CLUSTER_TEXT] = "";

    if (gethostname(node, sizeof(node) - 1) < 0 || !node[0])
        strcpy(node, "?");
    if (!pb_clock_answer(q->body ? q->body : "", q->length, node, received_ns, &w))
        return 0;
    *ret = pb_answer(q->connection, 200,
                     MHD_create_response_from_buffer(w.nwaiting, w.waiting, MHD_RESPMEM_MUST_COPY),
                     q->route->forms->type);
    return 1;
}

/* The connection becomes a stream of frames (command.c). */
static enum MHD_Result upgrade(struct pb_request *q)
{
    const char *to = pb_request_header(q, "Upgrade");
    struct MHD_Response *response =
        to && strcasecmp(to, PB_RELAY_NAME) == 0 ? pb_command_response(q->s) : NULL;

    if (!response)
        return pb_answer_error(q->connection, 426, "this is for `probing -t HOST:PORT`", NULL);
    enum MHD_Result r = MHD_queue_response(q->connection, 101, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result run_route(struct pb_request *q, int64_t received_ns)
{
    const struct pb_route *route = q->route;
    enum MHD_Result ret;

    if (route->flags & PB_ROUTE_COMMAND)
        return upgrade(q);
    if (route->flags & PB_ROUTE_EVENTS)
        return start_events(q);
    if (!route->words && !(route->flags & PB_ROUTE_HIDDEN) && pb_request_check(q, &ret))
        return ret;
    if (route->write)
        return pb_answer(q->connection, 200, pb_answer_written(route->write, &q->offer), route->forms->type);
    if (route->flags & PB_ROUTE_MCP)
        return pb_request_run_mcp(q);
    if (route->flags & PB_ROUTE_CLUSTER && answer_clock(q, received_ns, &ret))
        return ret;
    return pb_request_run(q);
}

static enum MHD_Result dispatch(struct pb_request *q, const char *path, const char *method)
{
    int64_t received_ns = pb_wall_ns();
    char allowed[64];
    enum MHD_Result ret;
    bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;

    if (reads && pb_page_answer(q->connection, path, &ret))
        return ret;
    q->route = pb_route_find(method, path, &q->offer, q->id, allowed);
    if (q->route)
        return run_route(q, received_ns);
    if (allowed[0])
        return pb_answer_error(q->connection, 405, "this path has other methods", allowed);
    return pb_answer_error(q->connection, 404, "not found (/openapi.json lists the resources)", NULL);
}

/* --- requests --- */

struct headers {
    struct pb_request_headers values;
    unsigned hosts, lengths, encodings, authorizations, origins;
};

static enum MHD_Result look_at_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct headers *h = cls;
    const struct {
        const char *name;
        const char **to;
        unsigned *count;
    } wanted[] = {{"Host", &h->values.host, &h->hosts},
                  {"Content-Length", &h->values.length, &h->lengths},
                  {"Origin", &h->values.origin, &h->origins},
                  {"Authorization", &h->values.authorization, &h->authorizations},
                  {"Sec-Fetch-Site", &h->values.site, NULL},
                  {"Sec-Fetch-Mode", &h->values.mode, NULL},
                  {"Accept", &h->values.accept, NULL},
                  {"X-Probing-Token", &h->values.token_header, NULL},
                  {"Cookie", &h->values.cookie, NULL}};

    (void)kind;
    value = value ? value : "";
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (strcasecmp(key, wanted[i].name) == 0) {
            *wanted[i].to = value;
            if (wanted[i].count)
                ++*wanted[i].count;
        }
    h->values.upgrade = h->values.upgrade || strcasecmp(key, "Upgrade") == 0;
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->values.chunked = true;
        h->encodings++;
    }
    return MHD_YES;
}

/* A unix socket needs no token: its peer is the user, or root. Root's service answers every peer, with the
 * peer's rights. */
static bool is_known_peer(struct MHD_Connection *c, struct pb_credentials *ret)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info && pb_credentials_of_peer(info->connect_fd, ret);
}

/* The address of this machine that the client has connected to. */
static const char *local_address(struct MHD_Connection *c, char *ret, socklen_t size)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof(at);

    if (!info || getsockname(info->connect_fd, (struct sockaddr *)&at, &n) < 0 ||
        getnameinfo((struct sockaddr *)&at, n, ret, size, NULL, 0, NI_NUMERICHOST) != 0)
        return NULL;
    return strncmp(ret, "::ffff:", 7) == 0 && strchr(ret, '.') ? ret + 7 : ret;
}

static enum MHD_Result begin_request(struct listener *l, struct MHD_Connection *c, const char *path,
                                     const char *method, struct pb_request **ret)
{
    struct headers h = {.values = {.method = method, .path = path}};
    struct pb_credentials credentials = {0};
    const char *why;
    char local[64];

    if (l->is_unix && !is_known_peer(c, &credentials))
        return pb_answer_error(c, 403, "this socket is another user's", NULL);
    MHD_get_connection_values(c, MHD_HEADER_KIND, look_at_header, &h);
    h.values.doubled =
        h.hosts > 1 || h.lengths > 1 || h.encodings > 1 || h.authorizations > 1 || h.origins > 1;
    h.values.token_argument = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token");
    if (!l->is_unix)
        h.values.local = local_address(c, local, sizeof(local));
    const struct pb_gate *gate = l->is_unix ? &l->s->unix_gate : &l->s->gate;
    unsigned status = pb_gate_check(gate, &h.values, &why);
    if (status)
        return pb_answer_refusal(c, &l->s->offer, method, path, status, why);
    if (pb_gate_is_login(gate, &h.values))
        return pb_login(c, gate, path, h.values.host, l->cert != NULL);
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return MHD_NO;
    /* Without a token a connection may be closed when others need its place. */
    pb_connections_set(l->connections, c,
                       gate->token[0] && pb_gate_is_open(path) ? PB_CONNECTION_IDLE : PB_CONNECTION_BUSY);
    (*ret)->s = l->s;
    (*ret)->connection = c;
    (*ret)->credentials = credentials;
    (*ret)->offer = l->s->offer;
    if (credentials.uid) { /* root's own choices */
        (*ret)->offer.target = (*ret)->offer.cores = NULL;
        (*ret)->offer.others = true;
    }
    return MHD_YES;
}

static void take_body(struct pb_request *q, const char *data, size_t n)
{
    char *more = q->length + n > PB_SERVE_BODY_MAX ? NULL : realloc(q->body, q->length + n + 1);

    q->too_long = q->too_long || !more;
    if (q->too_long)
        return;
    memcpy(more + q->length, data, n);
    q->body = more;
    q->length += n;
    q->body[q->length] = '\0';
}

static enum MHD_Result pb_http_request(void *cls, struct MHD_Connection *c, const char *path,
                                       const char *method, const char *version, const char *data,
                                       size_t *data_length, void **con_cls)
{
    struct pb_request *q = *con_cls;

    (void)version;
    if (!q)
        return begin_request(cls, c, path, method, (struct pb_request **)con_cls);
    if (*data_length) {
        take_body(q, data, *data_length);
        q->received += *data_length;
        *data_length = 0;
        /* A chunked body far beyond the limit: the client sees a closed connection. */
        return q->received > (uint64_t)PB_SERVE_BODY_MAX * 8 ? MHD_NO : MHD_YES;
    }
    if (q->job)
        return pb_request_answer(q);
    if (q->too_long)
        return pb_answer_error(c, 413, "the body is too long (1 MB at most)", NULL);
    return dispatch(q, path, method);
}

static void free_request(struct pb_request *q)
{
    if (q->audit)
        pb_request_end_audit(q);
    if (q->job)
        pb_serve_job_release(q->job);
    if (q->events)
        pb_subscriber_leave(q->events);
    free(q->body);
    free(q->printed);
    pb_mcp_reply_done(&q->mcp);
    free(q);
}

static void end_request(void *cls, struct MHD_Connection *c, void **con_cls,
                        enum MHD_RequestTerminationCode code)
{
    struct pb_request *q = *con_cls;

    (void)code;
    if (q)
        free_request(q);
    *con_cls = NULL;
    pb_connections_set(((struct listener *)cls)->connections, c, PB_CONNECTION_IDLE);
}

static void *begin_head(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)uri;
    pb_connections_set(((struct listener *)cls)->connections, c, PB_CONNECTION_HEAD);
    return NULL;
}

/* --- listeners --- */

/* For each listener. The other descriptors are for commands. */
static unsigned most_connections(void)
{
    enum { LEAST = 16, LISTENERS = 3, FOR_OTHERS = 512 };
    struct rlimit limit = {0};

    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t room = limit.rlim_cur > FOR_OTHERS ? (limit.rlim_cur - FOR_OTHERS) / LISTENERS : 0;
    return room < LEAST ? LEAST : room < PB_SERVE_CONNECTIONS ? (unsigned)room : PB_SERVE_CONNECTIONS;
}

static void free_listener(struct listener *l)
{
    pb_connections_free(l->connections);
    free(l->cert);
    free(l->key);
    free(l);
}

int pb_http_start(struct pb_service *s, const struct pb_listen *at, void **ret_daemon, struct pb_err *err)
{
    struct listener *l = calloc(1, sizeof(*l));
    unsigned flags = MHD_USE_POLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                     MHD_ALLOW_UPGRADE | MHD_USE_ITC;

    if (!l)
        return pb_fail(err, -ENOMEM, "out of memory");
    l->s = s;
    l->is_unix = at->is_unix;
    int r = pb_home_read_pem(at->cert, &l->cert, err);
    if (r == 0)
        r = pb_home_read_pem(at->key, &l->key, err);
    l->connections = pb_connections_new(most_connections(), at->is_unix);
    if (r == 0 && !l->connections)
        r = pb_fail(err, -ENOMEM, "out of memory");
    if (r < 0) {
        free_listener(l);
        return r;
    }
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, l->cert},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, l->key},
                                   {MHD_OPTION_END, 0, NULL}};
    l->daemon = MHD_start_daemon(flags | (l->cert ? MHD_USE_TLS : 0), 0, NULL, NULL, pb_http_request, l,
                                 MHD_OPTION_LISTEN_SOCKET, at->fd, MHD_OPTION_CONNECTION_LIMIT,
                                 pb_connections_limit(l->connections), MHD_OPTION_CONNECTION_TIMEOUT, 60u,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)PB_SERVE_HEADERS,
                                 MHD_OPTION_NOTIFY_COMPLETED, end_request, l, MHD_OPTION_NOTIFY_CONNECTION,
                                 pb_connections_notify, l->connections, MHD_OPTION_URI_LOG_CALLBACK,
                                 begin_head, l, MHD_OPTION_ARRAY, l->cert ? tls : tls + 2, MHD_OPTION_END);
    if (!l->daemon) {
        free_listener(l);
        return pb_fail(err, -EIO, "cannot start the HTTP server%s",
                       at->cert ? " (check --cert and --key)" : "");
    }
    *ret_daemon = l;
    return 0;
}

void pb_http_sweep(void *daemon)
{
    struct listener *l = daemon;

    if (l)
        pb_connections_sweep(l->connections);
}

void pb_http_stop(void *daemon)
{
    struct listener *l = daemon;

    if (!l)
        return;
    MHD_stop_daemon(l->daemon);
    free_listener(l);
}
