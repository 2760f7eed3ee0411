/* own_service: see own_service.h. */
#include "cluster/link/own_service.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_port.h"
#include "base/json.h"
#include "base/own_folder.h"
#include "control/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void read_line(int folder, const char *name, char *ret, size_t size)
{
    _cleanup_close_ int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\r\n")] = '\0';
}

/* Its folder, which only the user can have made. -ENOENT, -EPERM. */
static int open_own_folder(char ret_path[PB_SERVICE_PATH])
{
    struct stat st;

    pb_own_folder_path(PB_SERVE_FOLDER, PB_SERVE_FOLDER, ret_path, PB_SERVICE_PATH);
    int fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

int pb_own_service_find(struct pb_own_service *ret)
{
    char pid[32];

    *ret = (struct pb_own_service){0};
    _cleanup_close_ int folder = open_own_folder(ret->folder);
    if (folder < 0)
        return folder;
    _cleanup_close_ int lock = openat(folder, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    /* A shared lock: two processes that look at the same time do not see each other as the service. */
    if (lock < 0 || flock(lock, LOCK_SH | LOCK_NB) == 0)
        return -ENOENT;
    read_line(folder, "lock", pid, sizeof(pid));
    read_line(folder, "address", ret->url, sizeof(ret->url));
    read_line(folder, "token", ret->token, sizeof(ret->token));
    ret->pid = (pid_t)strtol(pid, NULL, 10);
    return ret->pid > 0 ? 0 : -ENOENT;
}

void pb_own_service_token(char ret[PB_SERVICE_TOKEN])
{
    char path[PB_SERVICE_PATH];
    _cleanup_close_ int folder = open_own_folder(path);

    ret[0] = '\0';
    if (folder >= 0)
        read_line(folder, "token", ret, PB_SERVICE_TOKEN);
}

bool pb_service_error(const char *body, size_t length, char *ret, size_t size)
{
    _cleanup_(pb_json_done) struct pb_json j = {0};

    return pb_json_parse(body, length, &j) == 0 &&
           pb_json_text(&j, pb_json_get(&j, pb_json_get(&j, 1, "error"), "message"), ret, size) > 0;
}

/* --- addresses --- */

int pb_service_resolve(const char *text, struct sockaddr_storage *ret, socklen_t *ret_size,
                       struct pb_err *err)
{
    char host[256] = "";
    const char *port = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;

    if (text && pb_host_port_split(text, host, sizeof(host), &port) < 0)
        return pb_fail(err, -EINVAL, "%.200s is no address to listen at (HOST:PORT)", text);
    port = port ? port : "0";
    if (strspn(port, "0123456789") == strlen(port) && strtoul(port, NULL, 10) > 65535)
        return pb_fail(err, -EINVAL, "%.200s is no address to listen at: ports end at 65535", text);
    int r = getaddrinfo(host[0] ? host : "127.0.0.1", port, &hints, &found);
    if (r != 0)
        return pb_fail(err, -EINVAL, "%.200s is no address to listen at: %s (HOST:PORT)", text,
                       gai_strerror(r));
    memcpy(ret, found->ai_addr, found->ai_addrlen);
    *ret_size = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

/* Only an address of this machine can be bound. */
static bool is_of_this_machine(const struct sockaddr *at, socklen_t size)
{
    struct sockaddr_storage any_port = {0};
    _cleanup_close_ int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(&any_port, at, size);
    if (at->sa_family == AF_INET)
        ((struct sockaddr_in *)&any_port)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)&any_port)->sin6_port = 0;
    return fd >= 0 && bind(fd, (struct sockaddr *)&any_port, size) == 0;
}

bool pb_service_is_at(const char *url, const struct sockaddr *at, socklen_t size)
{
    const struct sockaddr_in *v4 = (const void *)at;
    const struct sockaddr_in6 *v6 = (const void *)at;
    bool is4 = at->sa_family == AF_INET;
    const char *host = strstr(url, "://"), *port;
    char text[PB_SERVICE_PATH];
    unsigned char number[sizeof(struct in6_addr)], zero[sizeof(struct in6_addr)] = {0};

    if (!host || (!is4 && at->sa_family != AF_INET6) ||
        pb_host_port_split(host + 3, text, sizeof(text), &port) < 0 || !port ||
        strtoul(port, NULL, 10) != ntohs(is4 ? v4->sin_port : v6->sin6_port))
        return false;
    const void *wanted = is4 ? (const void *)&v4->sin_addr : (const void *)&v6->sin6_addr;
    size_t n = is4 ? sizeof(v4->sin_addr) : sizeof(v6->sin6_addr);
    if (inet_pton(at->sa_family, text, number) == 1 && memcmp(number, zero, n) != 0)
        return memcmp(number, wanted, n) == 0;
    bool other = inet_pton(is4 ? AF_INET6 : AF_INET, text, number) == 1 &&
                 memcmp(number, zero, is4 ? sizeof(v6->sin6_addr) : sizeof(v4->sin_addr)) != 0;
    return !other && is_of_this_machine(at, size);
}

int pb_own_service_connect(const struct sockaddr *at, socklen_t size, int flags)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t n = sizeof(peer);
    char path[PB_SERVICE_PATH], url[PB_SERVICE_PATH];
    _cleanup_close_ int folder = open_own_folder(path);

    if (folder < 0)
        return -ENOENT;
    read_line(folder, "address", url, sizeof(url));
    /* One with TLS is reached as from elsewhere, by ssh: its address says nothing of its socket. */
    if (strncmp(url, "http://", 7) != 0 || !pb_service_is_at(url, at, size))
        return -ENOENT;
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    /* By the folder's descriptor: a socket's name has room for 107 characters only. */
    snprintf(to.sun_path, sizeof(to.sun_path), "/proc/self/fd/%d/socket", folder);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 || peer.uid != geteuid())
        return -ENOENT;
    return pb_take_fd(fd);
}
