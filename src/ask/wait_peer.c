/* wait_peer: the process at the other end of a pipe or socket of another process; see waits.h.
 *
 * Pipes and sockets have inodes, and /proc/PID/fd shows which processes have them open. The other end of a
 * TCP connection on this machine is found by its addresses, that of a Unix socket by sock_diag. Processes of
 * another user or container are not visible. */
#include "ask/waits.h"
#include "base/cleanup.h"
#include "base/procfs.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROCESSES_MAX 65536

/* Whether a process has the file of that link ("pipe:[17]") open; writer: for writing, by fdinfo. */
static bool has_open(pid_t pid, const char *wanted, bool writer)
{
    char path[64], link[64], text[256];
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        ssize_t n = isdigit((unsigned char)e->d_name[0])
                        ? readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1)
                        : -1;
        link[n > 0 ? n : 0] = '\0';
        if (n <= 0 || strcmp(link, wanted) != 0)
            continue;
        snprintf(path, sizeof(path), "fdinfo/%.20s", e->d_name);
        found = !writer ||
                (pb_proc_read(pid, path, text, sizeof(text)) > 0 && pb_proc_number(text, "flags", 8) & 1);
    }
    if (dir)
        closedir(dir);
    return found;
}

/* The first process other than `self` that has it open; `self` where it is the only one; 0: none visible. */
static pid_t find_owner(pid_t self, const char *wanted, bool writer)
{
    int looked_at = 0;
    pid_t owner = 0;

    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir && looked_at < PROCESSES_MAX && (e = readdir(dir));) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;
        looked_at += pid != 0;
        if (!pid || !has_open(pid, wanted, writer))
            continue;
        owner = pid;
        if (pid != self)
            break;
    }
    if (dir)
        closedir(dir);
    return owner;
}

static void read_name(pid_t pid, char ret[32])
{
    if (pb_proc_read(pid, "comm", ret, 32) < 0)
        ret[0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
}

static void name_pipe(pid_t pid, const char *link, struct pb_wait *w)
{
    char name[32];

    w->holder_pid = find_owner(pid, link, !w->writes);
    if (!w->holder_pid) {
        snprintf(w->text, sizeof(w->text), "a pipe that no process we can see %s",
                 w->writes ? "reads" : "writes to");
    } else if (w->holder_pid == pid) {
        snprintf(w->text, sizeof(w->text), "a pipe that it could only %s itself",
                 w->writes ? "read" : "write to");
    } else {
        read_name(w->holder_pid, name);
        snprintf(w->text, sizeof(w->text), "a pipe %s process %d (%s)", w->writes ? "to" : "from",
                 (int)w->holder_pid, name);
    }
}

/* A line of /proc/PID/net/tcp: "sl local:port remote:port st .. inode", addresses in hexadecimal words. */
struct connection {
    char local[40], remote[40];
    unsigned local_port, remote_port;
    unsigned long inode;
};

static bool parse_connection(const char *line, struct connection *ret)
{
    return sscanf(line, " %*d: %39[0-9A-Fa-f]:%x %39[0-9A-Fa-f]:%x %*x %*x:%*x %*x:%*x %*x %*d %*d %lu",
                  ret->local, &ret->local_port, ret->remote, &ret->remote_port, &ret->inode) == 5;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

static bool is_other_end(const struct connection *a, const struct connection *b)
{
    return a->local_port == b->remote_port && a->remote_port == b->local_port &&
           strcmp(a->local, b->remote) == 0 && strcmp(a->remote, b->local) == 0;
}

static void put_address(const struct connection *c, bool six, struct pb_wait *w)
{
    char text[INET6_ADDRSTRLEN] = "?";
    uint32_t words[4];

    if (strlen(c->remote) == (six ? 32 : 8)) {
        for (int i = 0; i < (six ? 4 : 1); i++) {
            char word[9] = "";
            memcpy(word, c->remote + 8 * i, 8);
            words[i] = (uint32_t)strtoul(word, NULL, 16);
        }
        inet_ntop(six ? AF_INET6 : AF_INET, words, text, sizeof(text));
    }
    snprintf(w->text, sizeof(w->text), six ? "a connection to [%s]:%u" : "a connection to %s:%u", text,
             c->remote_port);
}

/* Searches the tables of its network namespace. True: it is a TCP socket; *ret_peer is the inode of the other
 * end where that is in the same namespace. */
static bool look_for_tcp(pid_t pid, struct pb_wait *w, unsigned long *ret_peer)
{
    for (int six = 0; six < 2; six++) {
        _cleanup_free_ char *text = NULL;
        struct connection ours = {0}, c;
        if (pb_proc_slurp(pid, six ? "net/tcp6" : "net/tcp", &text, NULL) < 0)
            continue;
        for (const char *line = text; *line; line = next_line(line))
            if (parse_connection(line, &c) && c.inode == w->object)
                ours = c;
        if (!ours.inode)
            continue;
        w->remote_port = ours.remote_port;
        if (ours.remote_port == 0)
            snprintf(w->text, sizeof(w->text), "a socket that listens on port %u", ours.local_port);
        else
            put_address(&ours, six, w);
        for (const char *line = text; ours.remote_port && *line; line = next_line(line))
            if (parse_connection(line, &c) && is_other_end(&ours, &c))
                *ret_peer = c.inode;
        return true;
    }
    return false;
}

/* The other end of a Unix socket in our network namespace; 0: unknown. */
static unsigned long find_unix_peer(uint64_t inode)
{
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } ask = {{sizeof(ask), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0},
             {.sdiag_family = AF_UNIX,
              .udiag_states = ~0u,
              .udiag_ino = (uint32_t)inode,
              .udiag_show = UDIAG_SHOW_PEER,
              .udiag_cookie = {~0u, ~0u}}};
    _Alignas(struct nlmsghdr) char answer[4096];
    unsigned long peer = 0;

    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    ssize_t n = fd >= 0 && send(fd, &ask, sizeof(ask), 0) == (ssize_t)sizeof(ask)
                    ? recv(fd, answer, sizeof(answer), 0)
                    : -1;
    if (fd >= 0)
        close(fd);
    const struct nlmsghdr *h = (const struct nlmsghdr *)(void *)answer;
    if (n <= 0 || !NLMSG_OK(h, (size_t)n) || h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return 0;
    const struct unix_diag_msg *m = NLMSG_DATA(h);
    int left = (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)));
    for (struct rtattr *a = (struct rtattr *)(uintptr_t)(m + 1); RTA_OK(a, left); a = RTA_NEXT(a, left))
        if (a->rta_type == UNIX_DIAG_PEER && RTA_PAYLOAD(a) >= sizeof(uint32_t))
            peer = *(const uint32_t *)RTA_DATA(a);
    return peer;
}

static void name_socket(pid_t pid, struct pb_wait *w)
{
    unsigned long peer = 0;
    char link[64], name[32];

    snprintf(w->text, sizeof(w->text), "a socket");
    if (!look_for_tcp(pid, w, &peer))
        peer = find_unix_peer(w->object);
    if (!peer)
        return;
    snprintf(link, sizeof(link), "socket:[%lu]", peer);
    w->holder_pid = find_owner(pid, link, false);
    if (!w->holder_pid)
        return;
    read_name(w->holder_pid, name);
    size_t len = strlen(w->text);
    snprintf(w->text + len, sizeof(w->text) - len,
             w->holder_pid == pid ? " of its own" : " of process %d (%s)", (int)w->holder_pid, name);
}

void pb_wait_peer(pid_t pid, struct pb_wait *w)
{
    char path[32], link[256];

    snprintf(path, sizeof(path), "fd/%d", w->fd);
    if (w->fd < 0 || pb_proc_link(pid, path, link, sizeof(link)) < 0)
        return;
    const char *inode = strstr(link, ":[");
    w->object = inode ? strtoul(inode + 2, NULL, 10) : 0;
    if (strncmp(link, "pipe:[", 6) == 0) {
        w->kind = PB_WAIT_PIPE;
        name_pipe(pid, link, w);
    } else if (strncmp(link, "socket:[", 8) == 0) {
        w->kind = PB_WAIT_SOCKET;
        name_socket(pid, w);
    } else {
        w->kind = PB_WAIT_FILE;
        snprintf(w->text, sizeof(w->text), "%s", link);
    }
    pb_text_clean(w->text);
}
