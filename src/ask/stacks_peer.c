/* stacks_peer: who is at the other end of a descriptor of another process; see stacks.h. */
#include "ask/stacks.h"
#include "base/cleanup.h"
#include "base/procfs.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES_MAX 65536

/* Whether a process has that pipe open for writing: the descriptor's flags are in fdinfo. */
static bool writes_to(pid_t pid, const char *pipe)
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
        if (n <= 0 || strcmp(link, pipe) != 0)
            continue;
        snprintf(path, sizeof(path), "fdinfo/%.20s", e->d_name);
        found = pb_proc_read(pid, path, text, sizeof(text)) > 0 && pb_proc_number(text, "flags", 8) & 1;
    }
    if (dir)
        closedir(dir);
    return found;
}

static void name_writer(pid_t reader, const char *pipe, char *ret, size_t size)
{
    char comm[32];
    int looked_at = 0;

    /* Writers of another user or container are not seen. */
    snprintf(ret, size, "a pipe that no process we can see writes to");
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir && looked_at < PROCESSES_MAX && (e = readdir(dir));) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;
        if (!pid || ++looked_at == 0 || !writes_to(pid, pipe))
            continue;
        if (pb_proc_read(pid, "comm", comm, sizeof(comm)) < 0)
            comm[0] = '\0';
        comm[strcspn(comm, "\n")] = '\0';
        snprintf(ret, size,
                 pid == reader ? "a pipe that it could only write to itself" : "a pipe from process %d (%s)",
                 (int)pid, comm);
        if (pid != reader)
            break;
    }
    if (dir)
        closedir(dir);
}

/* A line of /proc/PID/net/tcp: "sl local:port remote:port st .. inode", addresses in hexadecimal words. */
static bool parse_tcp(const char *line, unsigned long inode, bool six, char *ret, size_t size)
{
    char remote[40], text[INET6_ADDRSTRLEN];
    unsigned port;
    unsigned long found;
    uint32_t words[4];

    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%*x %39[0-9A-Fa-f]:%x %*x %*x:%*x %*x:%*x %*x %*d %*d %lu", remote,
               &port, &found) != 3 ||
        found != inode || strlen(remote) != (six ? 32 : 8))
        return false;
    for (int i = 0; i < (six ? 4 : 1); i++) {
        char word[9] = "";
        memcpy(word, remote + 8 * i, 8);
        words[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    inet_ntop(six ? AF_INET6 : AF_INET, words, text, sizeof(text));
    snprintf(ret, size, six ? "a connection to [%s]:%u" : "a connection to %s:%u", text, port);
    return true;
}

static void name_socket(pid_t pid, unsigned long inode, char *ret, size_t size)
{
    snprintf(ret, size, "a socket");
    for (int six = 0; six < 2; six++) {
        _cleanup_free_ char *text = NULL;
        if (pb_proc_slurp(pid, six ? "net/tcp6" : "net/tcp", &text, NULL) < 0)
            continue;
        for (char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
            if (parse_tcp(line, inode, six, ret, size))
                return;
    }
}

void pb_stacks_peer(pid_t pid, int fd, char *ret, size_t size)
{
    char path[32], link[256];

    ret[0] = '\0';
    snprintf(path, sizeof(path), "fd/%d", fd);
    if (pb_proc_link(pid, path, link, sizeof(link)) < 0)
        return;
    if (strncmp(link, "pipe:", 5) == 0)
        name_writer(pid, link, ret, size);
    else if (strncmp(link, "socket:[", 8) == 0)
        name_socket(pid, strtoul(link + 8, NULL, 10), ret, size);
    else
        snprintf(ret, size, "%s", link);
    for (char *p = ret; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = '?';
}
