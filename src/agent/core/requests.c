/* requests: handles each message of a client. The resident thread runs this: nothing here may block. */
#include "agent/channel/channel.h"
#include "agent/core/agent.h"
#include "agent/core/peek.h"
#include "agent/crash/crash.h"
#include "agent/crash/hang.h"
#include "agent/probes/probes.h"
#include "agent/python/job.h"
#include "control/message.h"
#include "table/arena.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A field as a C string; NULs in it end it early. -ENOENT, -EMSGSIZE. */
static int text_field(const struct pb_frame *frame, uint16_t tag, char *ret, size_t size)
{
    struct pb_field field;

    int r = pb_field_find(frame, tag, &field);
    if (r < 0)
        return r;
    if (field.size >= size)
        return -EMSGSIZE;
    memcpy(ret, field.data, field.size);
    ret[field.size] = '\0';
    return 0;
}

/* Takes the same time for a wrong secret as for the right one. */
static int same_secret(const char *a, const char *b)
{
    unsigned difference = 0;

    if (strlen(a) != strlen(b))
        return 0;
    for (; *a; a++, b++)
        difference |= (unsigned char)(*a ^ *b);
    return difference == 0;
}

static void hello(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    uint8_t buf[128];
    struct pb_frame_writer w;
    char secret[64];

    if (text_field(frame, PB_TAG_SECRET, secret, sizeof(secret)) < 0 ||
        !same_secret(secret, agent->run.secret)) {
        c->closing = 1;
        pb_server_send_error(&agent->server, c->id, frame->id, EACCES, "the secret is not this run's");
        return;
    }
    c->greeted = 1;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VERSION, PB_CONTROL_VERSION);
    pb_frame_put_str(&w, PB_TAG_TEXT, PROBING_VERSION);
    pb_server_send(&agent->server, c->id, buf, (size_t)pb_frame_end(&w, PB_MSG_DONE, frame->id));
}

static void run_job(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char filename[256] = "<probing>", why[256];
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, PB_RUN_EVAL);
    struct pb_field code;

    if (pb_field_find(frame, PB_TAG_CODE, &code) < 0) {
        pb_server_send_error(&agent->server, c->id, frame->id, EINVAL, "the request has no code");
        return;
    }
    text_field(frame, PB_TAG_FILENAME, filename, sizeof(filename));
    const struct pb_job_request request = {
        .client = c->id,
        .request = frame->id,
        .mode = mode <= PB_RUN_LIVE ? (enum pb_run_mode)mode : PB_RUN_EVAL,
        .timeout_ms = pb_field_u64(frame, PB_TAG_TIMEOUT_MS, 10000) & UINT32_MAX,
        .code = code.data,
        .code_size = code.size,
        .filename = filename,
    };
    int r = pb_job_start(&request, why, sizeof(why));
    if (r < 0)
        pb_server_send_error(&agent->server, c->id, frame->id, r, why);
}

static void send_setting(struct pb_agent *agent, struct pb_server_client *c, uint32_t request, int i)
{
    uint8_t buf[PB_SETTING_LENGTH + 256];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, pb_setting_info[i].name);
    pb_frame_put_str(&w, PB_TAG_VALUE, agent->settings.at[i].text);
    pb_frame_put_str(&w, PB_TAG_TEXT, pb_origin_name(agent->settings.at[i].origin));
    pb_server_send(&agent->server, c->id, buf, (size_t)pb_frame_end(&w, PB_MSG_OUTPUT, request));
}

/* Written to the file before it takes effect: a tool that reads the file must not mask less than the process
 * was told to. */
static int set_setting(struct pb_agent *agent, const char *name, const char *value, char *why,
                       size_t why_size)
{
    struct pb_settings next = agent->settings;

    int r = pb_settings_set(&next, name, value, why, why_size);
    if (r < 0)
        return r;
    r = pb_run_keep_settings(&agent->run, &next);
    if (r < 0) {
        snprintf(why, why_size, "the setting cannot be kept in %s: %s", agent->run.dir, strerror(-r));
        return r;
    }
    agent->settings = next;
    pb_crash_set_secrets(next.at[PB_SET_REDACT].text);
    pb_arena_set_bound(agent->arena, pb_run_bound(&agent->run, (uint64_t)next.at[PB_SET_MAX_MEMORY].number));
    pb_arena_tend(agent->arena);
    return pb_probes_configure(&agent->settings, name, why, why_size);
}

static void config(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char name[64] = "", value[PB_SETTING_LENGTH], why[400];
    pb_client_id id = c->id;

    int named = text_field(frame, PB_TAG_NAME, name, sizeof(name)) == 0;
    if (named && text_field(frame, PB_TAG_VALUE, value, sizeof(value)) == 0) {
        int r = set_setting(agent, name, value, why, sizeof(why));
        if (r < 0) {
            pb_server_send_error(&agent->server, id, frame->id, r, why);
            return;
        }
    }
    for (int i = 0; i < PB_SETTINGS && c->id == id; i++)
        if (!named || strcmp(name, pb_setting_info[i].name) == 0)
            send_setting(agent, c, frame->id, i);
    pb_server_send_done(&agent->server, id, frame->id, 0);
}

/* Sends a remark for a person on the copy in the run directory, if there is one. */
static void send_note(struct pb_agent *agent, pb_client_id client, uint32_t request)
{
    int error = pb_arena_mirror_error(agent->arena);
    uint8_t buf[512];
    char text[400];
    struct pb_frame_writer w;

    if (error == 0)
        return;
    snprintf(text, sizeof(text), "the tables are not kept for after the process ends: %s: %s", agent->run.dir,
             strerror(-error));
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_TEXT, text);
    pb_server_send(&agent->server, client, buf, (size_t)pb_frame_end(&w, PB_MSG_OUTPUT, request));
}

static void tables(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    int fd = pb_arena_fd(agent->arena);
    pb_client_id id = c->id;

    send_note(agent, id, frame->id);
    int r = fd < 0 ? -ENOENT : pb_server_send_fd(&agent->server, id, frame->id, fd);
    if (r < 0)
        pb_server_send_error(&agent->server, id, frame->id, r,
                             "there is no descriptor of the tables to give");
}

static void send_value(struct pb_agent *agent, struct pb_server_client *c, uint32_t request, uint64_t value)
{
    uint8_t buf[64];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, value);
    pb_server_send(&agent->server, c->id, buf, (size_t)pb_frame_end(&w, PB_MSG_DONE, request));
}

static void send_probe(struct pb_agent *agent, pb_client_id client, uint32_t request,
                       const struct pb_probe_info *info)
{
    uint8_t buf[1024];
    struct pb_frame_writer w;

    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_str(&w, PB_TAG_NAME, info->probe->name);
    pb_frame_put_u64(&w, PB_TAG_VALUE, info->state);
    pb_frame_put_str(&w, PB_TAG_DATA, info->settings);
    pb_frame_put_str(&w, PB_TAG_TEXT, info->probe->text);
    pb_frame_put_str(&w, PB_TAG_WHY, info->text);
    int size = pb_frame_end(&w, PB_MSG_OUTPUT, request);
    if (size > 0)
        pb_server_send(&agent->server, client, buf, (size_t)size);
}

static void deal_with_probes(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char name[64] = "", settings[PB_PROBE_SETTINGS] = "", why[300] = "its settings are too long";
    uint64_t mode = pb_field_u64(frame, PB_TAG_MODE, PB_PROBES_LIST);
    pb_client_id id = c->id;
    struct pb_probe_info info;

    int named = text_field(frame, PB_TAG_NAME, name, sizeof(name)) == 0;
    int r = text_field(frame, PB_TAG_DATA, settings, sizeof(settings));
    r = r == -ENOENT ? 0 : r;
    if (r == 0 && mode == PB_PROBES_START)
        r = pb_probes_start(name, settings, why, sizeof(why));
    else if (r == 0 && mode == PB_PROBES_STOP)
        r = pb_probes_stop(name, why, sizeof(why));
    if (r < 0) {
        pb_server_send_error(&agent->server, id, frame->id, r, why);
        return;
    }
    for (int i = 0; pb_probes_at(i, &info) == 0; i++)
        if (!named || strcmp(name, info.probe->name) == 0)
            send_probe(agent, id, frame->id, &info);
    pb_server_send_done(&agent->server, id, frame->id, r);
}

/* The kind and the arguments of a channel. */
static int channel_fields(const struct pb_frame *frame, char kind[PB_CHANNEL_KIND],
                          struct pb_field *arguments)
{
    int r = text_field(frame, PB_TAG_NAME, kind, PB_CHANNEL_KIND);
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
        snprintf(why, sizeof(why), "code of this connection runs; a channel takes one of its own");
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
        send_value(agent, c, frame->id, PB_CHANNEL_WINDOW);
}

static void listen_for_channels(struct pb_agent *agent, struct pb_server_client *c,
                                const struct pb_frame *frame)
{
    char kind[PB_CHANNEL_KIND], address[64], why[200] = "the kind of the channel, or the address, is missing";
    struct pb_field arguments;

    int r = channel_fields(frame, kind, &arguments);
    if (r == 0)
        r = text_field(frame, PB_TAG_TEXT, address, sizeof(address));
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
        send_value(agent, c, frame->id, (uint64_t)r);
}

static void stop_listening(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char kind[PB_CHANNEL_KIND] = "";

    text_field(frame, PB_TAG_NAME, kind, sizeof(kind));
    int channels = pb_field_u64(frame, PB_TAG_MODE, 0) == 1;
    send_value(agent, c, frame->id, (uint64_t)pb_channel_listen_stop(kind, channels));
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

void pb_agent_request(void *owner, struct pb_server *s, struct pb_server_client *c,
                      const struct pb_frame *frame)
{
    struct pb_agent *agent = owner;

    if (pb_channel_is(c->id)) {
        pass_to_channel(agent, c, frame);
        return;
    }
    switch (frame->type) {
    case PB_MSG_HELLO:
        hello(agent, c, frame);
        break;
    case PB_MSG_PING:
        pb_server_send_done(s, c->id, frame->id, 0);
        break;
    case PB_MSG_RUN:
        run_job(agent, c, frame);
        break;
    case PB_MSG_CANCEL:
        pb_job_cancel(c->id, frame->id);
        break;
    case PB_MSG_CONFIG:
        config(agent, c, frame);
        break;
    case PB_MSG_READ:
        pb_peek_memory(s, c, frame);
        break;
    case PB_MSG_MAPS:
        pb_peek_maps(s, c, frame);
        break;
    case PB_MSG_THREAD:
        pb_peek_thread(s, c, frame);
        break;
    case PB_MSG_TABLES:
        tables(agent, c, frame);
        break;
    case PB_MSG_CHANNEL:
        open_channel(agent, c, frame);
        break;
    case PB_MSG_LISTEN:
        listen_for_channels(agent, c, frame);
        break;
    case PB_MSG_LISTEN_STOP:
        stop_listening(agent, c, frame);
        break;
    case PB_MSG_PROBES:
        deal_with_probes(agent, c, frame);
        break;
    case PB_MSG_CRASH:
        pb_crash_request(agent, c, frame);
        break;
    case PB_MSG_HANG:
        pb_hang_request(agent, c, frame);
        break;
    case PB_MSG_DETACH:
        agent->detach = 1;
        c->detach = frame->id ? frame->id : 1;
        break;
    default:
        pb_server_send_error(s, c->id, frame->id, ENOSYS,
                             "this agent does not know the request; detach and inject the newer release");
    }
}
