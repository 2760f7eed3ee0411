/* host_port: see host_port.h. */
#include "base/host_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

int pb_host_port_split(const char *text, char *ret_host, size_t size, const char **ret_port)
{
    const char *colon = strchr(text, ':'), *port = NULL;
    size_t n = strlen(text);

    if (text[0] == '[') {
        const char *end = strchr(++text, ']');
        if (!end || (end[1] && end[1] != ':'))
            return -EINVAL;
        port = end[1] ? end + 2 : NULL;
        n = (size_t)(end - text);
    } else if (colon && !strchr(colon + 1, ':')) {
        port = colon + 1;
        n = (size_t)(colon - text);
    } else if (n && strspn(text, "0123456789") == n) {
        port = text;
        n = 0;
    }
    if (n >= size)
        return -ENAMETOOLONG;
    memcpy(ret_host, text, n);
    ret_host[n] = '\0';
    *ret_port = port;
    return 0;
}

static bool is_v4_loopback(const struct in_addr *v4)
{
    return ntohl(v4->s_addr) >> 24 == 127;
}

bool pb_is_loopback(const struct sockaddr *at)
{
    const struct sockaddr_in *v4 = (const void *)at;
    const struct sockaddr_in6 *v6 = (const void *)at;

    return (at->sa_family == AF_INET && is_v4_loopback(&v4->sin_addr)) ||
           (at->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr));
}

bool pb_host_is_loopback(const char *host)
{
    struct in6_addr v6;
    struct in_addr v4;

    return (inet_pton(AF_INET, host, &v4) == 1 && is_v4_loopback(&v4)) ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}
