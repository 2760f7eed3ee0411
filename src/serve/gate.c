/* gate: see gate.h. */
#include "serve/gate.h"

#include "serve/routes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The name of a Host header: without its port, an IPv6 address without its brackets. */
static bool host_is(const char *host, const char *name)
{
    size_t n = strlen(name);

    if (host[0] == '[')
        return strncasecmp(host + 1, name, n) == 0 && host[1 + n] == ']' &&
               (host[2 + n] == '\0' || host[2 + n] == ':');
    return strncasecmp(host, name, n) == 0 && (host[n] == '\0' || host[n] == ':');
}

static bool is_our_host(const struct pb_gate *gate, const struct pb_request_headers *k)
{
    const char *host = k->host;
    static const char *const loopback[] = {"localhost", "127.0.0.1", "::1"};

    for (size_t i = 0; i < sizeof(loopback) / sizeof(loopback[0]); i++)
        if (host_is(host, loopback[i]))
            return true;
    for (size_t i = 0; i < PB_GATE_NAMES && gate->names[i]; i++)
        if (host_is(host, gate->names[i]))
            return true;
    return k->local && host_is(host, k->local);
}

/* Our own page has the Origin scheme://HOST of the Host that it sends. */
static bool is_own_origin(const char *origin, const char *host)
{
    static const char *const schemes[] = {"http://", "https://"};

    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (strncmp(origin, schemes[i], n) == 0 && strcasecmp(origin + n, host) == 0)
            return true;
    }
    return false;
}

static bool only_reads(const struct pb_request_headers *k)
{
    return !k->upgrade && (strcmp(k->method, "GET") == 0 || strcmp(k->method, "HEAD") == 0);
}

/* Constant time for all guesses of a length. */
static bool same_token(const char *want, const char *text, size_t n)
{
    unsigned char differs = strlen(want) == n ? 0 : 1;

    for (size_t i = 0; i < n; i++)
        differs |= (unsigned char)(text[i] ^ want[i < strlen(want) ? i : 0]);
    return !differs;
}

static int digit_of_base64(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* USER:TOKEN as browsers, curl -u and go tool pprof send them. */
static bool is_basic(const char *want, const char *text)
{
    char plain[256];
    size_t n = 0;
    uint32_t bits = 0;
    unsigned have = 0;

    for (; *text && *text != '=' && n < sizeof(plain); text++) {
        int digit = digit_of_base64(*text);
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have >= 8) {
            have -= 8;
            plain[n++] = (char)(bits >> have);
        }
    }
    const char *colon = memchr(plain, ':', n);
    return colon && same_token(want, colon + 1, n - (size_t)(colon + 1 - plain));
}

/* The name has the port of a service; any port is accepted, the value decides. */
static bool is_in_cookie(const struct pb_gate *gate, const char *cookie)
{
    size_t n = strlen(PB_GATE_COOKIE);

    while (*cookie) {
        cookie += strspn(cookie, "; ");
        size_t len = strcspn(cookie, ";"), name = strcspn(cookie, ";=");
        if (name < len && name >= n && strncmp(cookie, PB_GATE_COOKIE, n) == 0 &&
            same_token(gate->token, cookie + name + 1, len - name - 1))
            return true;
        cookie += len;
    }
    return false;
}

static bool has_token_argument(const struct pb_gate *gate, const struct pb_request_headers *k)
{
    return k->token_argument && same_token(gate->token, k->token_argument, strlen(k->token_argument));
}

/* A token that a browser does not send by itself, as it does a cookie. */
static bool has_own_token(const struct pb_gate *gate, const struct pb_request_headers *k)
{
    const char *a = k->authorization;

    if (a && strncasecmp(a, "Bearer ", 7) == 0 && same_token(gate->token, a + 7, strlen(a + 7)))
        return true;
    if (a && strncasecmp(a, "Basic ", 6) == 0 && is_basic(gate->token, a + 6))
        return true;
    if (k->token_header && same_token(gate->token, k->token_header, strlen(k->token_header)))
        return true;
    return has_token_argument(gate, k);
}

/* Browsers send the cookie also with requests of pages at other ports of this host. So changes must come from
 * our own page, and reads from our page or from a link that a person follows. */
static bool is_from_own_page(const struct pb_request_headers *k)
{
    bool own = k->site ? strcmp(k->site, "same-origin") == 0 : k->origin && is_own_origin(k->origin, k->host);

    if (own || !only_reads(k))
        return own;
    return !k->site || strcmp(k->site, "none") == 0 || (k->mode && strcmp(k->mode, "navigate") == 0);
}

static bool is_too_long(const struct pb_gate *gate, const char *length)
{
    char *end;

    errno = 0;
    unsigned long long n = strtoull(length, &end, 10);
    return errno || *end || n > gate->body_max;
}

bool pb_gate_is_login(const struct pb_gate *gate, const struct pb_request_headers *k)
{
    return gate->token[0] && strcmp(k->method, "GET") == 0 && !k->upgrade && has_token_argument(gate, k) &&
           (strcmp(k->path, "/") == 0 || (k->accept && strstr(k->accept, "text/html")));
}

void pb_gate_cookie_name(const char *host, char ret[32])
{
    const char *colon = strrchr(host, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;

    snprintf(ret, 32, PB_GATE_COOKIE "%s%.*s", digits ? "_" : "", digits < 6 ? (int)digits : 0,
             digits ? colon + 1 : "");
}

bool pb_gate_is_open(const char *path)
{
    for (const struct pb_route *r = NULL; (r = pb_route_next(r));)
        if (r->flags & PB_ROUTE_OPEN && strcmp(r->path, path) == 0)
            return true;
    return strncmp(path, "/assets/", 8) == 0;
}

unsigned pb_gate_check(const struct pb_gate *gate, const struct pb_request_headers *headers,
                       const char **ret_why)
{
    if (headers->doubled || (headers->length && headers->chunked)) {
        *ret_why = "a header is repeated that must be unique, or both Content-Length and "
                   "Transfer-Encoding are given";
        return 400;
    }
    if (!headers->host || !is_our_host(gate, headers)) {
        *ret_why = "this service does not answer under that name (serve --host NAME adds one)";
        return 421;
    }
    if (!only_reads(headers) && headers->origin && !is_own_origin(headers->origin, headers->host)) {
        *ret_why = "a page of another site may change nothing here";
        return 403;
    }
    if (!only_reads(headers) && headers->site && strcmp(headers->site, "same-origin") != 0 &&
        strcmp(headers->site, "none") != 0) {
        *ret_why = "a page of another site may change nothing here";
        return 403;
    }
    if (gate->token[0] && !pb_gate_is_open(headers->path) && !has_own_token(gate, headers)) {
        bool cookie = headers->cookie && is_in_cookie(gate, headers->cookie);
        if (cookie && !is_from_own_page(headers)) {
            *ret_why = "with a cookie only a page of this service may ask for that";
            return 403;
        }
        *ret_why = "a token is needed: Authorization: Bearer TOKEN (probing serve --status shows it)";
        if (!cookie)
            return 401;
    }
    if (headers->length && is_too_long(gate, headers->length)) {
        *ret_why = "the body is too long (1 MB at most)";
        return 413;
    }
    return 0;
}
