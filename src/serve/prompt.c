/* prompt: the prompt of the tool before, at /ws: each message of text is code, and is answered by one with
 * what it printed. See service.h.
 *
 * Each runs as `probing eval` does, whose assignments reach __main__ and so are there for the next one. A
 * thread a client: it waits for socket and command, and ends both. */
#include "base/cleanup.h"
#include "base/err.h"
#include "control/relay.h"
#include "print/records.h"
#include "serve/errand.h"
#include "serve/request.h"
#include "serve/websocket.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MESSAGE_MAX = PB_SERVE_BODY_MAX,
    PRINTED_MAX = 4 << 20,
    EVAL_MS = 60000,
    IDLE_MS = 3600000,  /* the tool before does not read while its user types: nothing can be asked of it */
    PATIENCE_MS = 30000 /* for the rest of a frame, and for a client to read */
};

struct prompt {
    struct pb_service *s;
    struct MHD_UpgradeResponseHandle *handle;
    struct pb_relay relay;
    struct pb_as as;
    char *target;
    char peer[PB_AUDIT_PEER];
    char *message; /* what has come of it */
    size_t length;
    int wake;
    unsigned char early[16384]; /* what came with the request's headers */
};

/* --- frames --- */

static int send_frame(struct prompt *p, enum pb_websocket_kind kind, const char *bytes, size_t n)
{
    unsigned char head[10];
    int r = pb_relay_put(&p->relay, head, pb_websocket_head(kind, n, head));

    return r == 0 && n ? pb_relay_put(&p->relay, bytes, n) : r;
}

static int take_head(struct prompt *p, struct pb_websocket_frame *ret)
{
    unsigned char head[14];
    int r = 0;

    p->relay.patience_ms = IDLE_MS;
    for (size_t n = 0; r == 0 && n < sizeof(head);) {
        r = pb_relay_take(&p->relay, head + n++, 1);
        p->relay.patience_ms = PATIENCE_MS;
        if (r == 0)
            r = pb_websocket_parse(head, n, ret);
    }
    return r;
}

/* The next frame. 1: the message is complete; 0: it goes on; negative: there is no more. */
static int take_frame(struct prompt *p)
{
    struct pb_websocket_frame f;
    int r = take_head(p, &f);
    bool text = r > 0 && (f.kind == PB_WEBSOCKET_TEXT || f.kind == PB_WEBSOCKET_CONTINUED);

    if (r < 0 || f.length > (text ? MESSAGE_MAX - p->length : 125))
        return r < 0 ? r : -EFBIG;
    size_t n = (size_t)f.length, at = text ? p->length : 0;
    char control[125], *more = text ? realloc(p->message, at + n + 1) : control;
    if (!more)
        return -ENOMEM;
    if (text)
        p->message = more;
    r = n ? pb_relay_take(&p->relay, more + at, n) : 0;
    if (r < 0)
        return r;
    pb_websocket_unmask(&f, more + at, n);
    if (f.kind == PB_WEBSOCKET_PING)
        return send_frame(p, PB_WEBSOCKET_PONG, control, n);
    if (!text)
        return f.kind == PB_WEBSOCKET_PONG ? 0 : -EPIPE;
    p->length += n;
    p->message[p->length] = '\0';
    return f.last;
}

/* --- code --- */

static void wake(void *arg)
{
    struct prompt *p = arg;
    uint64_t one = 1;

    (void)!write(p->wake, &one, sizeof(one));
}

static void ignore(void *arg)
{
    (void)arg;
}

/* What the command prints, until its end. False: the client has left. */
static bool take_printed(struct prompt *p, struct pb_errand *job, FILE *out)
{
    char piece[16384];
    uint64_t count;
    ssize_t n;
    size_t kept = 0;

    while ((n = pb_errand_read(job, piece, sizeof(piece), ignore)) != 0 && n != -EPIPE) {
        if (n > 0 && kept < PRINTED_MAX)
            kept += fwrite(piece, 1, (size_t)n, out);
        struct pollfd fds[] = {{p->wake, POLLIN, 0}, {p->relay.socket, POLLRDHUP, 0}};
        if (n == -EAGAIN && poll(fds, 2, -1) > 0 && fds[1].revents)
            return false;
        if (n == -EAGAIN && fds[0].revents)
            (void)!read(p->wake, &count, sizeof(count));
    }
    return true;
}

static void put_lines(FILE *out, const char *text)
{
    for (bool first = true; *text; first = false) {
        size_t n = strcspn(text, "\n");
        fputs(first ? "" : ",", out);
        pb_put_json(out, text, n);
        text += n + (text[n] == '\n');
    }
}

/* {"status", "output", "traceback"}, as the tool before answers. */
static int answer(struct prompt *p, const char *printed, size_t length, const char *errors)
{
    _cleanup_free_ char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return -ENOMEM;
    fprintf(out, "{\"status\":\"%s\",\"output\":", *errors ? "error" : "ok");
    pb_put_json(out, printed, length);
    fputs(",\"traceback\":[", out);
    put_lines(out, errors);
    fputs("]}", out);
    fclose(out);
    return send_frame(p, PB_WEBSOCKET_TEXT, text, size);
}

static int run_job(struct prompt *p, struct pb_errand *job, uint64_t audit)
{
    _cleanup_free_ char *printed = NULL;
    size_t size = 0;
    char outcome[64] = "ok";
    FILE *out = open_memstream(&printed, &size);

    if (!out)
        return -ENOMEM;
    bool there = take_printed(p, job, out);
    fclose(out);
    struct pb_errand_end end = pb_errand_end(job);
    if (!there)
        snprintf(outcome, sizeof(outcome), "ended, since the client left");
    else if (end.late || end.status)
        snprintf(outcome, sizeof(outcome), "exit status %d", end.status);
    pb_audit_end(p->s, audit, outcome);
    const char *errors = end.late ? "its time was up" : *end.errors ? end.errors : "the command failed";
    return there ? answer(p, printed, size, end.late || end.status ? errors : "") : -EPIPE;
}

static int run_message(struct prompt *p)
{
    _cleanup_(pb_words_done) struct pb_words w = {0};
    struct pb_errand *job = NULL;
    struct pb_err err = {0};

    if (strlen(p->message) != p->length)
        return answer(p, "", 0, "the code has a NUL in it");
    pb_words_add(&w, p->s->program);
    pb_words_add_option(&w, "--target", p->target);
    pb_words_add(&w, "eval");
    pb_words_add(&w, "--timeout=50");
    pb_words_add(&w, "--");
    pb_words_add(&w, p->message);
    const struct pb_errand_plan plan = {
        .argv = w.at, .limit_ms = EVAL_MS, .as = p->as, .resume = wake, .arg = p};
    uint64_t audit = pb_audit_begin(
        p->s,
        &(struct pb_audited){
            .peer = p->peer, .target = p->target, .what = "/ws", .body = p->message, .length = p->length});
    int r = pb_errand_start(p->s->jobs, &plan, &job, &err);
    if (r < 0) {
        pb_audit_end(p->s, audit, "the command was not started");
        return answer(p, "", 0, pb_err_text(&err, r));
    }
    r = run_job(p, job, audit);
    pb_errand_release(job);
    return r;
}

/* --- its life --- */

/* What the client has sent is read for a moment: where it is not, the kernel resets the connection, and the
 * client may never see why. */
static void say_goodbye(struct prompt *p)
{
    enum { MOMENT_MS = 500, PIECES = 16 };
    char piece[4096];

    send_frame(p, PB_WEBSOCKET_CLOSE, "", 0);
    shutdown(p->relay.socket, SHUT_WR);
    for (int i = 0; i < PIECES; i++)
        if (poll(&(struct pollfd){p->relay.socket, POLLIN, 0}, 1, MOMENT_MS) <= 0 ||
            recv(p->relay.socket, piece, sizeof(piece), MSG_DONTWAIT) <= 0)
            return;
}

static void *run_prompt(void *arg)
{
    struct prompt *p = arg;
    unsigned char busy[] = {0x03, 0xf5}; /* 1013: try again later */
    int r = pb_commands_take(p->relay.socket, &p->as);

    if (r < 0)
        send_frame(p, PB_WEBSOCKET_CLOSE, (char *)busy, sizeof(busy));
    bool placed = r == 0;
    while (r >= 0 && (r = take_frame(p)) >= 0)
        if (r > 0) {
            r = p->length ? run_message(p) : answer(p, "", 0, "");
            p->length = 0;
        }
    if (placed)
        say_goodbye(p);
    if (placed)
        pb_commands_give(p->relay.socket, 0);
    MHD_upgrade_action(p->handle, MHD_UPGRADE_ACTION_CLOSE);
    close(p->wake);
    free(p->message);
    free(p->target);
    free(p);
    return NULL;
}

static void begin(void *cls, struct MHD_Connection *connection, void *con_cls, const char *early,
                  size_t nearly, int socket, struct MHD_UpgradeResponseHandle *handle)
{
    const struct pb_request *q = con_cls;
    const char *target = pb_request_argument(q, "target");
    struct prompt *p = calloc(1, sizeof(*p));
    pthread_t thread;

    if (p && nearly <= sizeof(p->early)) {
        p->s = cls;
        p->handle = handle;
        p->as = q->as;
        p->target = strdup(target ? target : q->offer.target);
        p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        p->relay = (struct pb_relay){socket, PATIENCE_MS, p->early, nearly};
        memcpy(p->early, early, nearly);
        pb_audit_peer(connection, p->peer);
        if (p->target && p->wake >= 0 && pthread_create(&thread, NULL, run_prompt, p) == 0) {
            pthread_detach(thread);
            return;
        }
        free(p->target);
    }
    free(p);
    MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
}

struct MHD_Response *pb_prompt_response(struct pb_request *q)
{
    const char *key = pb_request_header(q, "Sec-WebSocket-Key"),
               *version = pb_request_header(q, "Sec-WebSocket-Version");
    char accept[PB_WEBSOCKET_ACCEPT];

    if (!key || !version || strcmp(version, "13") != 0 || !pb_websocket_accept(key, accept))
        return NULL;
    struct MHD_Response *response = MHD_create_response_for_upgrade(begin, q->s);
    if (response) {
        MHD_add_response_header(response, "Upgrade", "websocket");
        MHD_add_response_header(response, "Sec-WebSocket-Accept", accept);
    }
    return response;
}
