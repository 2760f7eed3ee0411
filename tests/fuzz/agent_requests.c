/* Any bytes at all from a client, to a whole agent: server, requests, settings, probes, channels and tables,
 * but for its thread and Python. The first byte says whether the client has said HELLO, so that both sides of
 * that door are tried, whether it has a channel open already, and whether the rest are the bytes themselves
 * or types, tags and values of frames that are well formed: of those a fuzzer finds few. */
#include "agent/channel/channel.h"
#include "agent/core/agent.h"
#include "agent/core/fds.h"
#include "agent/core/spawn.h"
#include "agent/core/thread_start.h"
#include "agent/core/wake.h"
#include "agent/probes/probes.h"
#include "control/message.h"
#include "table/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit/agent_test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct pb_agent agent;
static int door[2];

/* The other end of every channel: sends back what comes. */
static void *echo(void *argument)
{
    uint64_t number = (uintptr_t)argument;
    char bytes[1000];
    long n;

    while (pb_channel_begin(number) && (n = pb_channel_read(number, bytes, sizeof(bytes), -1)) != 0)
        if (n > 0 && pb_channel_write(number, bytes, (size_t)n, 0) != n)
            break;
    pb_channel_thread_end(number, 0, "");
    return NULL;
}

static void client_gone(void *owner, pb_client_id client)
{
    (void)owner;
    pb_channel_gone(client);
}

static void start(void)
{
    const struct pb_arena_options options = {.bound = 4 << 20};
    uint32_t spawner = pb_spawn_begin();
    char why[200];

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
    agent.server.gone = client_gone;
    agent.server.owner = &agent;
    pb_channels_begin(echo);
    if (pb_probes_begin(pb_probe_list, agent.arena, why, sizeof(why)) < 0 || pb_spawn_start(spawner) < 0)
        abort();
}

/* A client's socket, passed through the agent's door socket as a tool does it. */
static int connect_client(void)
{
    int fd = connect_through(door[1]);
    if (fd < 0)
        abort();
    return fd;
}

static void turn(void)
{
    pb_channel_turn(&agent.server);
    pb_channel_poll(agent.server.others);
    pb_server_wait(&agent.server, 0);
    pb_server_read_events(&agent.server);
    pb_channel_read_events(agent.server.others);
}

/* A channel, by a frame of its own, whose id is 1. */
static void open_channel(int client)
{
    uint8_t buf[128];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, "echo");
    int size = pb_frame_end(&w, PB_MSG_CHANNEL, 1);
    if (send(client, buf, (size_t)size, MSG_NOSIGNAL) != size)
        abort();
    turn();
}

/* Sends frames made of the data: a type, a number of fields, and of each a tag, a size and bytes. */
static void send_frames(int client, const uint8_t *data, size_t size)
{
    static uint8_t buf[4096];
    struct pb_frame_writer w;

    for (size_t at = 0; at + 2 <= size;) {
        uint16_t type = data[at++];
        int fields = data[at++] % 6;
        pb_frame_begin(&w, buf, sizeof(buf));
        for (; fields > 0 && at + 2 <= size; fields--) {
            uint16_t tag = data[at++] % 24;
            size_t n = data[at++];
            n = n < size - at ? n : size - at;
            pb_frame_put(&w, tag, data + at, n);
            at += n;
        }
        int length = pb_frame_end(&w, type, 1);
        if (length > 0 && send(client, buf, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return; /* the agent has closed it, or has its turn first */
        turn();
    }
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
    if ((data[0] & 3) == 3)
        open_channel(client);
    if (data[0] & 4)
        send_frames(client, data + 1, size - 1);
    else if (send(client, data + 1, size - 1, MSG_NOSIGNAL) < 0)
        abort();
    shutdown(client, SHUT_WR);
    for (int i = 0; i < 100 && agent.server.clients[0].id; i++)
        turn();
    if (agent.server.clients[0].id)
        abort(); /* a client that has closed its side must be dropped */
    close(client);
    pb_channel_listen_stop("", 1);
    return 0;
}
