/* requests: the requests of clients. Parts handle theirs (part.h), the rest is here. The resident thread runs
 * this: nothing may block. */
#include "agent/core/agent.h"
#include "agent/core/notes.h"
#include "agent/core/part.h"
#include "agent/core/peek.h"
#include "control/message.h"
#include "table/arena.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

    if (pb_field_text(frame, PB_TAG_SECRET, secret, sizeof(secret)) < 0 ||
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

/* Write the file before the setting takes effect: a tool that reads the file must never mask less than the
 * process does. */
static int set_setting(struct pb_agent *agent, const char *name, const char *value, char *why,
                       size_t why_size)
{
    struct pb_settings next = agent->settings;

    int r = pb_settings_set(&next, name, value, why, why_size);
    if (r < 0)
        return r;
    r = pb_run_keep_settings(&agent->run, &next);
    if (r < 0) {
        snprintf(why, why_size, "the setting cannot be saved in %s: %s", agent->run.dir, strerror(-r));
        return r;
    }
    agent->settings = next;
    pb_arena_set_bound(agent->arena, pb_run_bound(&agent->run, (uint64_t)next.at[PB_SET_MAX_MEMORY].number));
    pb_arena_tend(agent->arena);
    for (int i = 0; pb_parts[i] && r == 0; i++)
        if (pb_parts[i]->configure)
            r = pb_parts[i]->configure(agent, name, why, why_size);
    return r;
}

static void config(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char name[64] = "", value[PB_SETTING_LENGTH], why[400];
    pb_client_id id = c->id;

    int named = pb_field_text(frame, PB_TAG_NAME, name, sizeof(name)) == 0;
    if (named && pb_field_text(frame, PB_TAG_VALUE, value, sizeof(value)) == 0) {
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
    snprintf(text, sizeof(text), "the tables will not outlive the process: %s: %s", agent->run.dir,
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

static void add_alert(struct pb_agent *agent, struct pb_server_client *c, const struct pb_frame *frame)
{
    char kind[32] = "", severity[16] = "", text[512] = "", subject[300];

    int r = pb_field_text(frame, PB_TAG_NAME, kind, sizeof(kind));
    if (r == 0)
        r = pb_field_text(frame, PB_TAG_WHY, severity, sizeof(severity));
    if (r == 0)
        r = pb_field_text(frame, PB_TAG_TEXT, text, sizeof(text));
    if (r < 0) {
        pb_server_send_error(&agent->server, c->id, frame->id, EINVAL,
                             "an alert has a kind, a severity and a text");
        return;
    }
    bool about = pb_field_text(frame, PB_TAG_FILENAME, subject, sizeof(subject)) == 0;
    pb_note_alert(&(const struct pb_alert){
        .kind = kind, .severity = severity, .subject = about ? subject : NULL, .text = text, .step = -1});
    pb_server_send_done(&agent->server, c->id, frame->id, 0);
}

void pb_agent_request(void *owner, struct pb_server *s, struct pb_server_client *c,
                      const struct pb_frame *frame)
{
    struct pb_agent *agent = owner;

    for (int i = 0; pb_parts[i]; i++)
        if (pb_parts[i]->request && pb_parts[i]->request(agent, c, frame))
            return;
    switch (frame->type) {
    case PB_MSG_HELLO:
        hello(agent, c, frame);
        break;
    case PB_MSG_PING:
        pb_server_send_done(s, c->id, frame->id, 0);
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
    case PB_MSG_ALERT:
        add_alert(agent, c, frame);
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
