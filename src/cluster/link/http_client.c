/* http_client: a question to a service, as one request; see link.h. What answers may be anything that listens
 * there. / */
#include "base/host_port.h"
#include "cluster/link/link.h"
#include "cluster/link/own_service.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 32 * 1024 };

int pb_link_connect(const char *address, int *ret_fd)
{
    char host[PB_CLUSTER_TEXT];
    const char *port;
    /* The file has numbers, never names: a name server that is slow would hold up all. */
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;

    if (pb_host_port_split(address, host, sizeof(host), &port) < 0 || !port ||
        getaddrinfo(host, port, &hints, &found) != 0)
        return -EINVAL;
    int r = 0, fd = pb_own_service_connect(found->ai_addr, found->ai_addrlen, SOCK_NONBLOCK);
    if (fd >= 0) {
        freeaddrinfo(found);
        *ret_fd = fd;
        return 0;
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, found->ai_addr, found->ai_addrlen) < 0 && errno != EINPROGRESS))
        r = -errno;
    freeaddrinfo(found);
    if (r < 0) {
        if (fd >= 0)
            close(fd);
        return r;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    *ret_fd = fd;
    return 0;
}

int pb_link_request(const struct pb_link_plan *plan, size_t node, char **ret, size_t *ret_length)
{
    const char *saved = plan->c->nodes[node].token;
    bool own = plan->own_token[0] && strcmp(saved, plan->own_token) == 0; /* token.h: never sent */
    const char *token = saved[0] && !own ? saved : plan->token;
    char *text;

    /* Host: a unix socket has no other name, and every service answers to this one. */
    int n = asprintf(&text,
                     "POST /api/v1/cluster HTTP/1.1\r\nHost: localhost\r\n%s%s%s"
                     "Content-Type: text/plain\r\nContent-Length: %zu\r\nConnection: %s\r\n\r\n%s",
                     token[0] ? "Authorization: Bearer " : "", token, token[0] ? "\r\n" : "", plan->length,
                     plan->keep ? "keep-alive" : "close", plan->question);
    if (n < 0)
        return -ENOMEM;
    *ret = text;
    *ret_length = (size_t)n;
    return 0;
}

/* A line of the head without its end. 1: the empty one. */
static int take_head_line(struct pb_http_in *h)
{
    const char *line = h->line;

    if (!h->status) {
        if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12 || strspn(line + 9, "0123456789") != 3)
            return -EBADMSG;
        h->status = atoi(line + 9);
        return h->status < 100 ? -EBADMSG : 0;
    }
    if (!*line) {
        h->state = h->chunked ? PB_HTTP_CHUNK : PB_HTTP_BODY;
        if (h->status == 100) /* the real one follows */
            h->state = PB_HTTP_HEAD, h->status = 0;
        h->ended = h->state == PB_HTTP_BODY && h->measured && !h->left;
        return 0;
    }
    if (strncasecmp(line, "Transfer-Encoding:", 18) == 0 && strcasestr(line + 18, "chunked"))
        h->chunked = true;
    if (strncasecmp(line, "Connection:", 11) == 0 && strcasestr(line + 11, "close"))
        h->closes = true;
    if (strncasecmp(line, "Content-Length:", 15) == 0) {
        const char *number = line + 15 + strspn(line + 15, " \t");
        if (strspn(number, "0123456789") != strlen(number) || !*number || strlen(number) > 18)
            return -EBADMSG;
        h->measured = true;
        h->left = strtoull(number, NULL, 10);
    }
    return 0;
}

/* The size of a chunk; 0: only trailers follow. */
static int take_chunk_line(struct pb_http_in *h)
{
    size_t digits = strspn(h->line, "0123456789abcdefABCDEF");

    if (digits == 0 || digits > 8 || (h->line[digits] && h->line[digits] != ';'))
        return -EBADMSG;
    h->left = strtoull(h->line, NULL, 16);
    h->state = h->left ? PB_HTTP_BODY : PB_HTTP_TRAILER;
    return 0;
}

static int take_line(struct pb_http_in *h)
{
    switch (h->state) {
    case PB_HTTP_HEAD:
        return take_head_line(h);
    case PB_HTTP_CHUNK:
        return take_chunk_line(h);
    case PB_HTTP_CHUNK_END:
        h->state = PB_HTTP_CHUNK;
        return h->line[0] ? -EBADMSG : 0;
    default:
        h->ended = h->ended || !h->line[0];
        return 0;
    }
}

int pb_http_take(struct pb_http_in *h, const char *bytes, size_t n,
                 int (*body)(void *arg, const char *bytes, size_t n), void *arg)
{
    while (n && !h->ended) {
        int r = 0;
        if (h->state == PB_HTTP_BODY) {
            bool bounded = h->chunked || h->measured;
            size_t piece = bounded && h->left < n ? (size_t)h->left : n;
            r = body(arg, bytes, piece);
            bytes += piece;
            n -= piece;
            h->left -= bounded ? piece : 0;
            if (h->chunked && !h->left)
                h->state = PB_HTTP_CHUNK_END;
            h->ended = h->measured && !h->chunked && !h->left;
            if (r != 0)
                return r;
            continue;
        }
        char c = *bytes++;
        n--;
        /* Lines of a head have a total; those of chunks each bring bytes. */
        if (h->n == sizeof(h->line) - 1 ||
            (h->state != PB_HTTP_CHUNK_END && h->state != PB_HTTP_CHUNK && ++h->total > HEAD_MAX))
            return -EBADMSG;
        if (c != '\n') {
            h->line[h->n++] = c;
            continue;
        }
        h->n -= h->n && h->line[h->n - 1] == '\r';
        h->line[h->n] = '\0';
        r = take_line(h);
        h->n = 0;
        if (r < 0)
            return r;
    }
    return 0;
}
