/* http: connections to answers: the gate, then a route, then a job (errand.h). See service.h.
 *
 * libmicrohttpd calls pb_http_request once with the headers, then for each piece of the body, then at its
 * end; after a suspended connection was resumed it calls the last one again. A status is sent once the
 * command has printed something or has ended: an error found before the first row is an error to HTTP too.
 * One found later breaks the stream off, which no client takes for its end. */
#include "base/cleanup.h"
#include "base/err.h"
#include "print/records.h"
#include "serve/answer.h"
#include "serve/errand.h"
#include "serve/events.h"
#include "serve/mcp.h"
#include "serve/original.h"
#include "serve/routes.h"
#include "serve/service.h"
#include "serve/words.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PRINTED_MAX = 4 << 20 };

#define RESULT "Probing-Result" /* the trailer of what was streamed to its end */

struct listener {
    struct pb_service *s;
    struct MHD_Daemon *daemon;
    bool is_unix;
    char *cert, *key;
};

struct request {
    struct pb_service *s;
    struct MHD_Connection *connection;
    const struct pb_route *route;
    const struct pb_form *form;
    struct pb_errand *job;
    struct pb_mcp_reply mcp;
    struct MHD_Response *streaming; /* libmicrohttpd's, which keeps it until the request is over */
    struct pb_subscriber *events;
    char id[PB_ROUTE_VARIABLE];
    char *body, *printed; /* printed: for a route that converts it */
    size_t length, printed_length;
    uint64_t audit; /* of a change; 0: it is none */
    bool too_long;
};

/* --- what needs no command --- */

static void write_index(FILE *out, bool read_only)
{
    fputs("Probing: what the processes of this node are doing. /openapi.json describes the rest.\n\n", out);
    fputs(pb_page_missing(), out);
    for (const struct pb_route *r = pb_routes; r->method; r++)
        if (!(read_only && r->flags & PB_ROUTE_CHANGES))
            fprintf(out, "%-4s %-34s %s\n", r->method, r->path, r->summary);
}

static void write_health(FILE *out, bool read_only)
{
    (void)read_only;
    fputs("{\"status\":\"ok\"}\n", out);
}

static void write_ready(FILE *out, bool read_only)
{
    (void)read_only;
    fputs("{\"status\":\"ready\"}\n", out);
}

/* What is answered without a command. MHD_NO: nothing of that. */
static const struct {
    const char *path, *type;
    void (*write_it)(FILE *out, bool read_only);
} fixed[] = {{"/", "text/plain; charset=utf-8", write_index},
             {"/health", "application/json", write_health},
             {"/ready", "application/json", write_ready},
             {"/openapi.json", "application/json", pb_openapi_write}};

/* --- the command of a route --- */

struct arguments {
    struct request *q;
    struct pb_words *words;
    struct pb_err *err;
    int r;
};

/* One argument of the query string; whatever the route does not know is refused, not passed over. */
static enum MHD_Result take_argument(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct arguments *a = cls;
    const struct pb_route *route = a->q->route;

    (void)kind;
    value = value ? value : "";
    if (a->r < 0 || strcmp(key, "format") == 0 || strcmp(key, "token") == 0)
        return MHD_YES;
    if (route->flags & PB_ROUTE_TARGET && (strcmp(key, "target") == 0 || strcmp(key, "all") == 0))
        return MHD_YES;
    for (const struct pb_param *p = route->params; p && p->name; p++)
        if (strcmp(p->name, key) == 0) {
            a->r = pb_words_add_param(a->words, p, value, a->err);
            return MHD_YES;
        }
    a->r = pb_fail(a->err, -EINVAL, "there is no argument '%.100s' here", key);
    return MHD_YES;
}

static const char *argument(const struct request *q, const char *name)
{
    return MHD_lookup_connection_value(q->connection, MHD_GET_ARGUMENT_KIND, name);
}

static int choose_form(struct request *q, struct pb_err *err)
{
    const char *wanted = argument(q, "format");

    q->form = q->route->forms;
    if (!wanted)
        return 0;
    for (const struct pb_form *f = q->route->forms; f->name; f++)
        if (strcmp(f->name, wanted) == 0) {
            q->form = f;
            return 0;
        }
    return pb_fail(err, -EINVAL, "there is no format '%.100s' here", wanted);
}

static int add_target(struct request *q, struct pb_words *w, struct pb_err *err)
{
    const char *target = argument(q, "target"), *all = argument(q, "all");

    if (target && !*target)
        return pb_fail(err, -EINVAL, "the target is empty");
    if (all && !pb_words_is_flag(all))
        return pb_fail(err, -EINVAL, "all is true or false, not '%.100s'", all);
    target = target ? target : q->s->target;
    if (target)
        pb_words_add_option(w, "--target", target);
    if (all && pb_words_is_true(all))
        pb_words_add(w, "--all");
    return 0;
}

/* The SQL in place of the body that has it. */
static int take_sql(struct request *q, struct pb_err *err)
{
    char *sql;
    int r = pb_original_sql(q->body ? q->body : "", q->length, &sql, err);

    if (r < 0)
        return r;
    free(q->body);
    q->body = sql;
    q->length = strlen(sql);
    return 0;
}

static int make_command(struct request *q, struct pb_words *w, struct pb_err *err)
{
    struct arguments a = {.q = q, .words = w, .err = err};

    pb_words_add(w, q->s->program);
    for (const char *const *word = q->route->words; *word; word++)
        pb_words_add(w, strcmp(*word, "{id}") == 0 || strcmp(*word, "{name}") == 0 ? q->id : *word);
    int r = choose_form(q, err);
    if (r < 0)
        return r;
    if (q->form->option)
        pb_words_add(w, q->form->option);
    if (q->route->flags & PB_ROUTE_TARGET)
        r = add_target(q, w, err);
    if (r == 0)
        MHD_get_connection_values(q->connection, MHD_GET_ARGUMENT_KIND, take_argument, &a);
    r = r < 0 ? r : a.r;
    if (r == 0 && q->route->flags & PB_ROUTE_SQL)
        r = take_sql(q, err);
    bool body = q->route->flags & (PB_ROUTE_STDIN | PB_ROUTE_ARGUMENT);
    if (r == 0 && body && (!q->length || strlen(q->body) != q->length))
        r = pb_fail(err, -EINVAL, q->length ? "the body has a NUL in it" : "the body is empty");
    if (r == 0 && q->route->flags & PB_ROUTE_ARGUMENT) {
        pb_words_add(w, "--");
        pb_words_add(w, q->body);
    }
    return r;
}

static void suspend(void *arg)
{
    struct request *q = arg;
    MHD_suspend_connection(q->connection);
}

static void resume(void *arg)
{
    struct request *q = arg;
    MHD_resume_connection(q->connection);
}

static void begin_audit(struct request *q)
{
    char peer[PB_AUDIT_PEER];

    pb_audit_peer(q->connection, peer);
    q->audit = pb_audit_begin(
        q->s,
        &(struct pb_audited){
            .peer = peer, .target = q->id, .what = q->route->path, .body = q->body, .length = q->length});
}

static void end_audit(const struct request *q)
{
    char text[256] = "the command was not started";

    if (q->job) {
        struct pb_errand_end end = pb_errand_end(q->job);
        if (!end.over)
            snprintf(text, sizeof(text), "ended, since the client left");
        else if (end.late)
            snprintf(text, sizeof(text), "ended, since its time was up");
        else if (end.status)
            snprintf(text, sizeof(text), "exit status %d: %.*s", end.status, (int)strcspn(end.errors, "\n"),
                     end.errors);
        else
            snprintf(text, sizeof(text), "ok");
    }
    pb_audit_end(q->s, q->audit, text);
}

/* A route's command, from here on in a child. */
static enum MHD_Result run_words(struct request *q, char *const *words, const char *file, unsigned limit_ms)
{
    const struct pb_errand_plan plan = {.argv = words,
                                        .input = q->route->flags & PB_ROUTE_STDIN ? q->body : NULL,
                                        .input_length = q->length,
                                        .file = file,
                                        .limit_ms = limit_ms,
                                        .resume = resume,
                                        .arg = q};
    struct pb_err err = {0};

    int r = pb_errand_start(q->s->jobs, &plan, &q->job, &err);
    if (r < 0)
        return pb_answer_error(q->connection, r == -EBUSY ? 503 : 500, pb_err_text(&err, r), NULL);
    pb_errand_ready(q->job, suspend);
    return MHD_YES;
}

static enum MHD_Result start_command(struct request *q)
{
    _cleanup_(pb_words_done) struct pb_words w = {0};
    struct pb_err err = {0};
    const char *seconds = argument(q, "seconds");

    if (q->route->words[0][0] == '-' && !pb_route_is_id(q->id))
        return pb_answer_error(q->connection, 404, "there is no such process: an id is a pid or PID@START",
                               NULL);
    if (strstr(q->route->path, "{name}") && !pb_route_is_name(q->id))
        return pb_answer_error(q->connection, 404, "there is no setting of that name", NULL);
    int r = make_command(q, &w, &err);
    if (r < 0)
        return pb_answer_error(q->connection, 400, pb_err_text(&err, r), NULL);
    if (q->route->flags & PB_ROUTE_CHANGES)
        begin_audit(q);
    unsigned limit_ms = q->route->limit_s * 1000 + (unsigned)(seconds ? strtod(seconds, NULL) * 1000 : 0);
    return run_words(q, w.at, q->form->file, limit_ms);
}

static const char *header(const struct request *q, const char *name)
{
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result start_mcp(struct request *q)
{
    const struct pb_mcp_request request = {.body = q->body ? q->body : "",
                                           .length = q->length,
                                           .version = header(q, "MCP-Protocol-Version"),
                                           .method = header(q, "Mcp-Method"),
                                           .name = header(q, "Mcp-Name"),
                                           .changes = q->s->mcp_changes && !q->s->read_only,
                                           .program = q->s->program,
                                           .target = q->s->target};

    if (pb_mcp_take(&request, &q->mcp) < 0)
        return MHD_NO;
    if (q->mcp.status) {
        char *text = q->mcp.text;
        q->mcp.text = NULL;
        return pb_answer(q->connection, q->mcp.status,
                         MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE),
                         q->route->forms->type);
    }
    if (q->mcp.changes)
        begin_audit(q);
    return run_words(q, q->mcp.words.at, q->mcp.file, q->route->limit_s * 1000);
}

/* --- what it gave --- */

static ssize_t read_job(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct request *q = cls;
    ssize_t n = pb_errand_read(q->job, buf, max, suspend);

    (void)pos;
    if (n == -EAGAIN)
        return 0;
    if (n == 0) /* a stream that broke has no trailer at all */
        MHD_add_response_footer(q->streaming, RESULT, "whole");
    return n > 0 ? n : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

/* "probing: backtrace: there is no process 7" without what a client knows. */
static enum MHD_Result send_failure(struct request *q, const struct pb_errand_end *end)
{
    char text[4096];

    snprintf(text, sizeof(text), "%s", end->errors);
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n')
        text[--n] = '\0';
    const char *said = strncmp(text, "probing: ", 9) == 0 ? text + 9 : text;
    if (end->late)
        return pb_answer_error(q->connection, 504, "its time was up", NULL);
    return pb_answer_error(q->connection, end->status == 2 ? 400 : 422, *said ? said : "the command failed",
                           NULL);
}

static enum MHD_Result send_file(struct request *q)
{
    struct stat st;
    int fd = pb_errand_open_file(q->job);

    if (fd < 0 || fstat(fd, &st) < 0) {
        if (fd >= 0)
            close(fd);
        return pb_answer_error(q->connection, 500, "the command has written nothing", NULL);
    }
    return pb_answer(q->connection, 200, MHD_create_response_from_fd((uint64_t)st.st_size, fd),
                     q->form->type);
}

/* Takes what the command printed. -EAGAIN: there is more to come; -EFBIG; -EPIPE: it failed. */
static int take_printed(struct request *q)
{
    char piece[16384];
    ssize_t n;

    while ((n = pb_errand_read(q->job, piece, sizeof(piece), suspend)) > 0) {
        char *more = q->printed_length + (size_t)n > PRINTED_MAX
                         ? NULL
                         : realloc(q->printed, q->printed_length + (size_t)n);
        if (!more)
            return -EFBIG;
        memcpy(more + q->printed_length, piece, (size_t)n);
        q->printed = more;
        q->printed_length += (size_t)n;
    }
    return (int)n;
}

static enum MHD_Result send_converted(struct request *q)
{
    char *text = NULL;
    size_t size = 0;

    int r = take_printed(q);
    if (r == -EAGAIN)
        return MHD_YES;
    if (r == -EFBIG)
        return pb_answer_error(q->connection, 500, "the answer is too long", NULL);
    FILE *out = r < 0 ? NULL : open_memstream(&text, &size);
    if (!out)
        return pb_answer_error(q->connection, 500, "the command failed in the middle", NULL);
    q->route->convert(q->printed ? q->printed : "", q->printed_length,
                      q->route->chosen ? argument(q, q->route->chosen) : NULL, out);
    fclose(out);
    return pb_answer(q->connection, 200, MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE),
                     q->form->type);
}

/* The answer of a tool is its text, also where it failed: the assistant reads why. */
static enum MHD_Result send_tool(struct request *q)
{
    char *text = NULL, piece[16384];
    size_t size = 0;
    ssize_t n;

    int r = take_printed(q);
    if (r == -EAGAIN)
        return MHD_YES;
    struct pb_errand_end end = pb_errand_end(q->job);
    _cleanup_close_ int fd = q->mcp.file && !end.status ? pb_errand_open_file(q->job) : -1;
    FILE *said = open_memstream(&text, &size);
    if (!said)
        return MHD_NO;
    if (fd < 0)
        fwrite(q->printed ? q->printed : "", 1, q->printed_length, said);
    while (fd >= 0 && size < PRINTED_MAX && (n = read(fd, piece, sizeof(piece))) > 0)
        fwrite(piece, 1, (size_t)n, said), fflush(said);
    fputs(r == -EFBIG ? "\n(cut: the answer is too long)" : end.late ? "\n(its time was up)" : "", said);
    if (end.status)
        fputs(end.errors, said);
    fclose(said);
    char *answer = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&answer, &length);
    if (out) {
        pb_mcp_put_result(out, q->mcp.id, r == -EFBIG || end.status || end.late, text, size);
        fclose(out);
    }
    free(text);
    return pb_answer(q->connection, 200,
                     MHD_create_response_from_buffer(length, answer, MHD_RESPMEM_MUST_FREE),
                     q->route->forms->type);
}

static enum MHD_Result send_answer(struct request *q)
{
    if (!pb_errand_ready(q->job, suspend))
        return MHD_YES;
    if (q->route->flags & PB_ROUTE_MCP)
        return send_tool(q);
    struct pb_errand_end end = pb_errand_end(q->job);
    if (end.over && (end.late || end.status) && (end.silent || q->form->file || end.late))
        return send_failure(q, &end);
    if (q->form->file)
        return send_file(q);
    if (q->route->convert)
        return send_converted(q);
    q->streaming = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 65536, read_job, q, NULL);
    if (q->streaming)
        MHD_add_response_header(q->streaming, "Trailer", RESULT);
    return pb_answer(q->connection, 200, q->streaming, q->form->type);
}

/* --- events --- */

static ssize_t read_events(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct request *q = cls;
    ssize_t n = pb_subscriber_read(q->events, buf, max);

    (void)pos;
    return n > 0 ? n : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM : 0;
}

static enum MHD_Result start_events(struct request *q)
{
    enum { PIECE = 2048 }; /* each client has a buffer of that size */
    const char *topics = argument(q, "topics");
    const struct pb_subscription to = {
        .topics = topics ? topics : "",
        .last_id = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, "Last-Event-ID"),
        .suspend = suspend,
        .resume = resume,
        .arg = q};
    _cleanup_(pb_words_done) struct pb_words ignored = {0};
    struct pb_err err = {0};
    struct arguments a = {.q = q, .words = &ignored, .err = &err};

    MHD_get_connection_values(q->connection, MHD_GET_ARGUMENT_KIND, take_argument, &a);
    int r = a.r < 0 ? a.r : pb_events_subscribe(q->s->events, &to, &q->events, &err);
    if (r < 0)
        return pb_answer_error(q->connection, r == -EINVAL ? 400 : 503, pb_err_text(&err, r), NULL);
    return pb_answer(q->connection, 200,
                     MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE, read_events, q, NULL),
                     q->route->forms->type);
}

static enum MHD_Result dispatch(struct request *q, const char *path, const char *method)
{
    char allowed[64];
    bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    enum MHD_Result answered;

    if (reads && pb_page_answer(q->s, q->connection, path, &answered))
        return answered;
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        if (strcmp(fixed[i].path, path) == 0)
            return reads ? pb_answer(q->connection, 200,
                                     pb_answer_written(fixed[i].write_it, q->s->read_only), fixed[i].type)
                         : pb_answer_error(q->connection, 405, "this can only be read", "GET, HEAD");
    if (strcmp(path, "/api/v1/command") == 0 && !q->s->read_only) {
        const char *to = MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, "Upgrade");
        if (!reads || !to || strcasecmp(to, "probing-command") != 0)
            return pb_answer_error(q->connection, 426, "this is for `probing -t HOST:PORT`", NULL);
        struct MHD_Response *response = pb_command_response(q->s);
        enum MHD_Result r = response ? MHD_queue_response(q->connection, 101, response) : MHD_NO;
        if (response)
            MHD_destroy_response(response);
        return r;
    }
    q->route = pb_route_find(method, path, q->s->read_only, q->id, allowed);
    if (!q->route && allowed[0])
        return pb_answer_error(q->connection, 405, "this path has other methods", allowed);
    if (!q->route)
        return pb_answer_error(q->connection, 404, "there is nothing here (/openapi.json says what there is)",
                               NULL);
    if (q->route->flags & PB_ROUTE_MCP)
        return start_mcp(q);
    return q->route->flags & PB_ROUTE_EVENTS ? start_events(q) : start_command(q);
}

/* --- requests --- */

struct headers {
    struct pb_knock knock;
    unsigned hosts, lengths, encodings, authorizations, origins;
};

static enum MHD_Result look_at_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct headers *h = cls;
    const struct {
        const char *name;
        const char **to;
        unsigned *count;
    } wanted[] = {{"Host", &h->knock.host, &h->hosts},
                  {"Content-Length", &h->knock.length, &h->lengths},
                  {"Origin", &h->knock.origin, &h->origins},
                  {"Authorization", &h->knock.authorization, &h->authorizations},
                  {"Sec-Fetch-Site", &h->knock.site, NULL},
                  {"Sec-Fetch-Mode", &h->knock.mode, NULL},
                  {"Accept", &h->knock.accept, NULL},
                  {"X-Probing-Token", &h->knock.token_header, NULL},
                  {"Cookie", &h->knock.cookie, NULL}};

    (void)kind;
    value = value ? value : "";
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (strcasecmp(key, wanted[i].name) == 0) {
            *wanted[i].to = value;
            if (wanted[i].count)
                ++*wanted[i].count;
        }
    h->knock.upgrade = h->knock.upgrade || strcasecmp(key, "Upgrade") == 0;
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->knock.chunked = true;
        h->encodings++;
    }
    return MHD_YES;
}

/* A unix socket asks for no token: its peer is the user, or root. */
static bool is_known_peer(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct ucred peer;
    socklen_t n = sizeof(peer);

    return info && getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static enum MHD_Result begin_request(struct listener *l, struct MHD_Connection *c, const char *path,
                                     const char *method, struct request **ret)
{
    struct headers h = {.knock = {.method = method, .path = path}};
    const char *why;

    if (l->is_unix && !is_known_peer(c))
        return pb_answer_error(c, 403, "this socket is another user's", NULL);
    MHD_get_connection_values(c, MHD_HEADER_KIND, look_at_header, &h);
    h.knock.doubled =
        h.hosts > 1 || h.lengths > 1 || h.encodings > 1 || h.authorizations > 1 || h.origins > 1;
    h.knock.token_argument = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token");
    const struct pb_gate *gate = l->is_unix ? &l->s->unix_gate : &l->s->gate;
    unsigned status = pb_gate_check(gate, &h.knock, &why);
    if (status)
        return pb_answer_error(c, status, why, NULL);
    if (pb_gate_is_login(gate, &h.knock))
        return pb_login(c, gate, path, h.knock.host, l->cert != NULL);
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return MHD_NO;
    (*ret)->s = l->s;
    (*ret)->connection = c;
    return MHD_YES;
}

static void take_body(struct request *q, const char *data, size_t n)
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
    struct request *q = *con_cls;

    (void)version;
    if (!q)
        return begin_request(cls, c, path, method, (struct request **)con_cls);
    if (*data_length) {
        take_body(q, data, *data_length);
        *data_length = 0;
        return MHD_YES;
    }
    if (q->job)
        return send_answer(q);
    if (q->too_long)
        return pb_answer_error(c, 413, "the body is longer than this service takes", NULL);
    return dispatch(q, path, method);
}

static void end_request(void *cls, struct MHD_Connection *c, void **con_cls,
                        enum MHD_RequestTerminationCode code)
{
    struct request *q = *con_cls;

    (void)cls, (void)c, (void)code;
    if (!q)
        return;
    if (q->audit)
        end_audit(q);
    if (q->job)
        pb_errand_release(q->job);
    if (q->events)
        pb_subscriber_leave(q->events);
    free(q->body);
    free(q->printed);
    pb_mcp_reply_done(&q->mcp);
    free(q);
    *con_cls = NULL;
}

/* --- listeners --- */

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
    if (r < 0) {
        free(l->cert);
        free(l);
        return r;
    }
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, l->cert},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, l->key},
                                   {MHD_OPTION_END, 0, NULL}};
    l->daemon = MHD_start_daemon(
        flags | (l->cert ? MHD_USE_TLS : 0), 0, NULL, NULL, pb_http_request, l, MHD_OPTION_LISTEN_SOCKET,
        at->fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)PB_SERVE_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        60u, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)PB_SERVE_HEADERS, MHD_OPTION_NOTIFY_COMPLETED,
        end_request, NULL, MHD_OPTION_ARRAY, l->cert ? tls : tls + 2, MHD_OPTION_END);
    if (!l->daemon) {
        free(l->cert);
        free(l->key);
        free(l);
        return pb_fail(err, -EIO, "the HTTP server does not start%s",
                       at->cert ? " (are certificate and key right?)" : "");
    }
    *ret_daemon = l;
    return 0;
}

void pb_http_stop(void *daemon)
{
    struct listener *l = daemon;

    if (!l)
        return;
    MHD_stop_daemon(l->daemon);
    free(l->cert);
    free(l->key);
    free(l);
}
