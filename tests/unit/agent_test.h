/* agent_test: what the tests and fuzzers of the agent's server share. */
#pragma once

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client of a server whose door is the other end of `door`: one end of a pair goes through it, the other is
 * ours. -1: no. */
static inline int connect_through(int door)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec byte = {"", 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
    ssize_t sent = sendmsg(door, &message, 0);
    close(pair[1]);
    if (sent == 1)
        return pair[0];
    close(pair[0]);
    return -1;
}
