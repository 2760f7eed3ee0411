/* channel_requests: requests about channels, and channels as a part of the agent. */
#include "agent/channel/channel.h"
#include "agent/core/agent.h"
#include "agent/core/part.h"
#include "agent/python/job.h"
#include "control/message.h"

#include <errno.h>
#include <stdio.h>

/* The kind and the arguments of a channel. */
static int channel_fields(const struct pb_frame *frame, char kind[PB_CHANNEL_KIND],
                          struct pb_field *arguments)
{
    int r = pb_field_text(frame, PB_TAG_NAME, kind, PB_CHANNEL_KIND);
    if (r < 0 || !kind[0])
        return -EINVAL;
    *arguments = (struct pb_field){0};
    r = pb_field_find(frame, PB_TAG_DATA, arguments);
    return r == -ENOENT ? 0 : r;
}

static void open_channel(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char kind[PB_CHANNEL_KIND], why[200] = "the kind of the channel is missing";
    struct pb_field arguments;

    int r = channel_fields(frame, kind, &arguments);
    if (r == 0 && pb_job_runs(c->id)) {
        r = -EBUSY;
        snprintf(why, sizeof(why), "this connection already runs code; open another one for a channel");
    }
    if (r == 0) {
        const struct pb_channel_request request = {
            .client = c->id,
            .request = frame->id,
            .timeout_ms = pb_field_u64(frame, PB_TAG_TIMEOUT_MS, 10000) & UINT32_MAX,
            .kind = kind,
            .arguments = arguments.data,
            .size = arguments.size,
        };
        r = pb_channel_open(&request, why, sizeof(why));
    }
    if (r < 0)
        pb_server_send_error(&agent->server, c->id, frame->id, r, why);
    else
        pb_server_send_value(&agent->server, c->id, frame->id, PB_CHANNEL_WINDOW);
}

static void listen_for_channels(struct pb_agent *agent, struct pb_server_client *c,
                                const struct pb_frame *frame)
{
    char kind[PB_CHANNEL_KIND], address[64], why[200] = "the kind of the channel, or the address, is missing";
    struct pb_field arguments;

    int r = channel_fields(frame, kind, &arguments);
    if (r == 0)
        r = pb_field_text(frame, PB_TAG_TEXT, address, sizeof(address));
    uint64_t port = pb_field_u64(frame, PB_TAG_VALUE, 0);
    if (r == 0 && port > UINT16_MAX) {
        r = -EINVAL;
        snprintf(why, sizeof(why), "a port is a number from 0 to %d", UINT16_MAX);
    }
    if (r == 0) {
        const struct pb_channel_listen how = {
            .address = address,
            .port = (uint16_t)port,
            .mode = pb_field_u64(frame, PB_TAG_MODE, 0) == PB_LISTEN_TEXT ? PB_LISTEN_TEXT : PB_LISTEN_BYTES,
            .kind = kind,
            .arguments = arguments.data,
            .size = arguments.size,
        };
        r = pb_channel_listen(&how, why, sizeof(why));
    }
    if (r < 0)
        pb_server_send_error(&agent->server, c->id, frame->id, r, why);
    else
        pb_server_send_value(&agent->server, c->id, frame->id, (uint64_t)r);
}

static void stop_listening(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char kind[PB_CHANNEL_KIND] = "";

    pb_field_text(frame, PB_TAG_NAME, kind, sizeof(kind));
    int channels = pb_field_u64(frame, PB_TAG_MODE, 0) == 1;
    pb_server_send_value(&agent->server, c->id, frame->id, (uint64_t)pb_channel_listen_stop(kind, channels));
}

/* Handles a frame of a connection that has become a channel. */
static void pass_to_channel(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    pb_client_id id = c->id;

    if (pb_channel_frame(id, frame) == 0)
        return;
    pb_server_send_error(
        &agent->server, id, frame->id, EPROTO,
        "the connection is a channel; this is not for one, or more than it was given room for");
    pb_server_close_client(&agent->server, id, 1000);
}

static int handle(struct pb_agent *agent, struct pb_server_client *client, const struct pb_frame *frame)
{
    if (pb_channel_is(client->id))
        pass_to_channel(agent, client, frame);
    else if (frame->type == PB_MSG_CHANNEL)
        open_channel(agent, client, frame);
    else if (frame->type == PB_MSG_LISTEN)
        listen_for_channels(agent, client, frame);
    else if (frame->type == PB_MSG_LISTEN_STOP)
        stop_listening(agent, client, frame);
    else
        return 0;
    return 1;
}

_Static_assert(PB_SERVER_OTHERS == PB_CHANNEL_POLLED, "room for all that channels wait for");

static int begin(struct pb_agent *agent, char *why, size_t why_size)
{
    (void)agent;
    (void)why;
    (void)why_size;
    pb_channels_begin(pb_channel_thread);
    return 0;
}

static void poll_descriptors(struct pb_agent *agent)
{
    pb_channel_poll(agent->server.others);
}

static void handle_events(struct pb_agent *agent)
{
    pb_channel_read_events(agent->server.others);
}

static int turn(struct pb_agent *agent, uint64_t now)
{
    (void)now;
    return pb_channel_turn(&agent->server);
}

static void end(struct pb_agent *agent)
{
    pb_channels_end(&agent->server, "the agent was detached");
}

const struct pb_part pb_part_channels = {
    .begin = begin,
    .before_poll = poll_descriptors,
    .after_poll = handle_events,
    .turn = turn,
    .request = handle,
    .busy = pb_channel_is,
    .gone = pb_channel_gone,
    .end = end,
    .forget = pb_channels_forget,
};
