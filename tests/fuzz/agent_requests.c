/* Any bytes at all from a client, to a whole agent: server, requests, settings and tables, but for its
 * thread. The first byte says whether the client has said HELLO, so that both sides of that door are tried.
 */
#include "agent/agent.h"
#include "agent/fds.h"
#include "table/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct pb_agent agent;
static int door[2];

static void start(void)
{
    const struct pb_arena_options options = {.bound = 4 << 20};

    pb_settings_init(&agent.settings, "", 0);
    agent.run.dir_fd = -1;
    memcpy(agent.run.secret, "0123456789abcdef", 17);
    if (pb_arena_create(PB_ARENA_MEMFD, "fuzz", &options, &agent.arena) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, door) < 0)
        abort();
    pb_server_init(&agent.server,
                   &(struct pb_server_ways){
                       .listen_fd = -1, .abstract_fd = -1, .door_fd = pb_fd_keep(door[0]), .wake_fd = -1});
    agent.server.handle = pb_agent_request;
    agent.server.owner = &agent;
}

/* A client's socket, handed in through the door as a tool does it. */
static int connect_client(void)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec byte = {"", 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        abort();
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
    if (sendmsg(door[1], &message, 0) < 0)
        abort();
    close(pair[1]);
    return pair[0];
}

static void turn(void)
{
    pb_server_wait(&agent.server, 0);
    pb_server_deal(&agent.server);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!agent.arena)
        start();
    if (size < 1 || size > 65536)
        return 0;
    int client = connect_client();
    turn();
    if (data[0] & 1)
        agent.server.clients[0].greeted = 1;
    if (send(client, data + 1, size - 1, MSG_NOSIGNAL) < 0)
        abort();
    shutdown(client, SHUT_WR);
    for (int i = 0; i < 100 && agent.server.clients[0].id; i++)
        turn();
    if (agent.server.clients[0].id)
        abort(); /* a client that said its last word must go */
    close(client);
    return 0;
}
