/* token: see token.h. */
#include "cluster/token.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "base/own_folder.h"
#include "control/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { TEXT_SIZE = 512 };

static void read_line(int folder, const char *name, char *ret, size_t size)
{
    _cleanup_close_ int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\r\n")] = '\0';
}

int pb_service_token(const char *given, char ret[PB_SERVICE_TOKEN], struct pb_err *err)
{
    const char *token = getenv("PROBING_TOKEN"), *path = getenv("PROBING_TOKEN_FILE");

    ret[0] = '\0';
    if (given && given[0]) {
        path = given;
    } else if (token) {
        snprintf(ret, PB_SERVICE_TOKEN, "%s", token);
        return 0;
    }
    if (!path)
        return 0;
    FILE *file = fopen(path, "re");
    int e = file ? 0 : -errno;
    if (file && !fgets(ret, PB_SERVICE_TOKEN, file))
        ret[0] = '\0';
    if (file)
        fclose(file);
    ret[strcspn(ret, "\r\n")] = '\0';
    return e < 0 ? pb_fail(err, e, "%s cannot be read: %s", path, strerror(-e)) : 0;
}

/* --- the user's own service --- */

/* Its folder, which only the user can have made. -ENOENT, -EPERM. */
static int open_own_folder(void)
{
    char path[TEXT_SIZE];
    struct stat st;

    pb_own_folder_path(PB_SERVE_FOLDER, PB_SERVE_FOLDER, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || st.st_mode & 077) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

void pb_service_own_token(char ret[PB_SERVICE_TOKEN])
{
    _cleanup_close_ int folder = open_own_folder();

    ret[0] = '\0';
    if (folder >= 0)
        read_line(folder, "token", ret, PB_SERVICE_TOKEN);
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
    const char *host = strstr(url, "://"), *colon = strrchr(url, ':');
    char text[TEXT_SIZE];
    unsigned char number[sizeof(struct in6_addr)], zero[sizeof(struct in6_addr)] = {0};

    if (!host || (!is4 && at->sa_family != AF_INET6) || colon <= host + 2 ||
        strtoul(colon + 1, NULL, 10) != ntohs(is4 ? v4->sin_port : v6->sin6_port))
        return false;
    host += 3;
    bool brackets = host[0] == '[';
    snprintf(text, sizeof(text), "%.*s", (int)(colon - host) - 2 * brackets, host + brackets);
    const void *wanted = is4 ? (const void *)&v4->sin_addr : (const void *)&v6->sin6_addr;
    size_t n = is4 ? sizeof(v4->sin_addr) : sizeof(v6->sin6_addr);
    if (inet_pton(at->sa_family, text, number) == 1 && memcmp(number, zero, n) != 0)
        return memcmp(number, wanted, n) == 0;
    bool other = inet_pton(is4 ? AF_INET6 : AF_INET, text, number) == 1 &&
                 memcmp(number, zero, is4 ? sizeof(v6->sin6_addr) : sizeof(v4->sin_addr)) != 0;
    return !other && is_of_this_machine(at, size);
}

int pb_service_own_connect(const struct sockaddr *at, socklen_t size, int flags)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t n = sizeof(peer);
    char url[TEXT_SIZE];
    _cleanup_close_ int folder = open_own_folder();

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
