/* gate: the access checks. Every request passes them before its path is looked at, so that no resource can
 * forget one.
 *
 * A page of some other site that runs in the user's browser must get nothing (Host ends DNS rebinding, Origin
 * and Sec-Fetch-Site end forged requests), and neither must another user of the node (token). No state, any
 * thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PB_GATE_TOKEN_SIZE 65 /* 256 bits as hexadecimal digits, and a NUL */
#define PB_GATE_NAMES      8
#define PB_GATE_COOKIE     "probing_token" /* the cookie's name begins so; the port follows */

struct pb_gate {
    char token[PB_GATE_TOKEN_SIZE];   /* "": none is asked for, since the socket knows its peers */
    const char *names[PB_GATE_NAMES]; /* what Host may be besides the loopback's names; NULL ends them */
    uint64_t body_max;
};

/* The headers and arguments that are checked; NULL: absent. */
struct pb_request_headers {
    const char *method, *path;
    const char *local; /* the address that the client connected to; DNS rebinding redirects names, not
                        * addresses */
    const char *host, *origin, *site, *mode; /* Host, Origin, Sec-Fetch-Site, Sec-Fetch-Mode */
    const char *accept;
    const char *authorization, *token_header, *cookie, *token_argument;
    const char *length; /* Content-Length */
    bool chunked, upgrade;
    bool doubled; /* a header appears twice that frames or routes the request */
};

/* 0, or the HTTP status of the refusal, with a sentence in *ret_why. */
unsigned pb_gate_check(const struct pb_gate *gate, const struct pb_request_headers *headers,
                       const char **ret_why);

/* Whether an admitted request is a browser that followed the link with the token. It then gets a cookie, and
 * a redirect to the same address without the token. go tool pprof stores no cookies, so it gets its
 * answer. */
bool pb_gate_is_login(const struct pb_gate *gate, const struct pb_request_headers *headers);

/* The name of the cookie for a service that the browser knows as host: browsers send the cookies of a host
 * to all of its ports, so two services that are forwarded to one machine need two names. */
void pb_gate_cookie_name(const char *host, char ret[32]);

/* Whether the path is answered without a token: it tells nothing but that the service is there, or is a file
 * of the page, which is the same for everybody. */
bool pb_gate_is_open(const char *path);
