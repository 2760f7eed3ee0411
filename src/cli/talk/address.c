/* address: see address.h. */
#include "cli/talk/address.h"

#include "ask/parts.h"
#include "base/err.h"
#include "base/host_port.h"
#include "cli/cli.h"
#include "control/message.h"
#include "inject/doctor.h"
#include "inject/session.h"
#include "print/outlet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MS 10000

static int parse_port(const char *text, uint16_t *ret)
{
    char *end;

    if (!*text || strspn(text, "0123456789") != strlen(text))
        return -EINVAL;
    unsigned long port = strtoul(text, &end, 10);
    if (port > UINT16_MAX)
        return -EINVAL;
    *ret = (uint16_t)port;
    return 0;
}

int pb_address_parse(const char *text, struct pb_address *ret, struct pb_err *err)
{
    struct pb_address a = {0};
    unsigned char number[sizeof(struct in6_addr)];
    const char *port = NULL;

    int r = text ? pb_host_port_split(text, a.host, sizeof(a.host), &port) : 0;
    if (!a.host[0] || strcmp(a.host, "localhost") == 0)
        snprintf(a.host, sizeof(a.host), "127.0.0.1");
    if (r == 0 && port)
        r = parse_port(port, &a.port);
    a.loopback = pb_host_is_loopback(a.host);
    if (r < 0 || (inet_pton(AF_INET, a.host, number) != 1 && inet_pton(AF_INET6, a.host, number) != 1))
        return pb_fail(
            err, PB_USAGE,
            "'%s' is no address: PORT, HOST or HOST:PORT, the host as a number such as 127.0.0.1 or [::1]",
            text);
    *ret = a;
    return 0;
}

int pb_address_token(const struct pb_call *call, const struct pb_address *address, char *ret, unsigned size,
                     struct pb_err *err)
{
    const char *given = pb_call_option(call, "token");

    ret[0] = '\0';
    if (given && strcmp(given, "-") == 0) {
        if (!fgets(ret, (int)size, stdin))
            ret[0] = '\0';
        ret[strcspn(ret, "\r\n")] = '\0';
    } else if (given) {
        if (strlen(given) >= size)
            return pb_fail(err, PB_USAGE, "the token is longer than %u characters", size - 1);
        snprintf(ret, size, "%s", given);
    }
    if (given && !ret[0])
        return pb_fail(err, PB_USAGE, "the token is empty");
    if (!given && !address->loopback)
        return pb_fail(err, PB_USAGE,
                       "%s can be reached from other machines: --token TOKEN names what a client must say",
                       address->host);
    return 0;
}

/* Sends a request and returns the value in the answer. */
static int ask_agent(struct pb_session *session, struct pb_frame_writer *w, uint16_t type, struct pb_err *err)
{
    struct pb_field text;
    struct pb_frame reply;

    int64_t id = pb_client_request(&session->client, w, type);
    int r = id < 0 ? (int)id : pb_client_next(&session->client, &reply, ANSWER_MS);
    if (r < 0)
        return pb_fail(err, r, "the agent does not answer: %s", strerror(-r));
    if (reply.type == PB_MSG_DONE && reply.id == (uint32_t)id)
        return (int)(pb_field_u64(&reply, PB_TAG_VALUE, 0) & UINT16_MAX);
    if (reply.type != PB_MSG_ERROR || pb_field_find(&reply, PB_TAG_TEXT, &text) < 0)
        return pb_fail(err, -EPROTO, "the agent's answer cannot be understood");
    return pb_fail(err, -EIO, "%.*s", (int)text.size, (const char *)text.data);
}

static int listen_as(pid_t pid, struct pb_session *session, const char *kind,
                     const struct pb_address *address, const char *arguments, int mode, struct pb_err *err)
{
    uint8_t buf[1024];
    struct pb_frame_writer w;

    int r = pb_inject_check_use(pid, PB_SECCOMP_LISTEN, err);
    if (r < 0)
        return r;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, kind);
    pb_frame_put(&w, PB_TAG_DATA, arguments, strlen(arguments));
    pb_frame_put_str(&w, PB_TAG_TEXT, address->host);
    pb_frame_put_u64(&w, PB_TAG_VALUE, address->port);
    pb_frame_put_u64(&w, PB_TAG_MODE, (uint64_t)mode);
    return ask_agent(session, &w, PB_MSG_LISTEN, err);
}

int pb_address_listen(pid_t pid, struct pb_session *session, const char *kind,
                      const struct pb_address *address, const char *token, struct pb_err *err)
{
    return listen_as(pid, session, kind, address, token, PB_LISTEN_TEXT, err);
}

int pb_address_listen_bytes(pid_t pid, struct pb_session *session, const char *kind,
                            const struct pb_address *address, const char *arguments, struct pb_err *err)
{
    return listen_as(pid, session, kind, address, arguments, PB_LISTEN_BYTES, err);
}

int pb_address_stop(struct pb_session *session, const char *kind, bool channels, struct pb_err *err)
{
    uint8_t buf[256];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, kind);
    pb_frame_put_u64(&w, PB_TAG_MODE, channels);
    return ask_agent(session, &w, PB_MSG_LISTEN_STOP, err);
}

int pb_address_stop_all(const struct pb_call *call, const char *kind, const char *otherwise,
                        struct pb_err *err)
{
    struct pb_session session;

    if (call->nargs || pb_call_option(call, "token"))
        return pb_fail(err, PB_USAGE, "--stop goes with neither an address nor a token: it stops all");
    int r = pb_parts_session(&call->ask, call->targets.at[0].pid, true, call->timeout_ms, &session, err);
    if (r < 0)
        return r;
    r = pb_address_stop(&session, kind, true, err);
    pb_session_done(&session);
    if (r == 0)
        pb_put_between(stderr, "note: ", otherwise, "\n");
    return r < 0 ? r : 0;
}

const char *pb_address_host(const struct pb_address *address)
{
    return strcmp(address->host, "0.0.0.0") == 0 ? "127.0.0.1"
           : strcmp(address->host, "::") == 0    ? "::1"
                                                 : address->host;
}

void pb_address_tell(const struct pb_address *address, int port)
{
    printf("nc %s %d\n", pb_address_host(address), port);
    fflush(stdout);
}

void pb_address_tell_plain(const struct pb_address *address, int port)
{
    const char *host = pb_address_host(address);

    printf(strchr(host, ':') ? "[%s]:%d\n" : "%s:%d\n", host, port);
    fflush(stdout);
}
