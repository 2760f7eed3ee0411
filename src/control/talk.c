/* talk: see talk.h. */
#include "control/talk.h"

#include "control/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MS 5000
#define PIECE     (16u << 10)
#define CREDIT    (1ull << 30)

/* Sends a frame with the channel's id. */
static int send_frame(struct pb_talk *talk, struct pb_frame_writer *w, uint16_t type)
{
    struct pb_client *client = talk->client;
    uint32_t last = client->last_id;

    client->last_id = talk->id - 1;
    int64_t r = pb_client_request(client, w, type);
    client->last_id = last;
    return r < 0 ? (int)r : 0;
}

static void take_text(const struct pb_frame *frame, char text[256])
{
    struct pb_field field;

    text[0] = '\0';
    if (pb_field_find(frame, PB_TAG_TEXT, &field) == 0)
        snprintf(text, 256, "%.*s", (int)(field.size < 255 ? field.size : 255), (const char *)field.data);
}

int pb_talk_open(struct pb_client *client, const char *kind, const void *arguments, size_t size,
                 unsigned timeout_ms, struct pb_talk *ret, char *text)
{
    struct pb_frame_writer w;
    struct pb_frame reply;
    size_t cap = size + 256;

    text[0] = '\0';
    uint8_t *buf = malloc(cap);
    if (!buf)
        return -ENOMEM;
    pb_frame_begin(&w, buf, cap);
    pb_frame_put_str(&w, PB_TAG_NAME, kind);
    pb_frame_put(&w, PB_TAG_DATA, arguments, size);
    pb_frame_put_u64(&w, PB_TAG_TIMEOUT_MS, timeout_ms);
    int64_t id = pb_client_request(client, &w, PB_MSG_CHANNEL);
    free(buf);
    int r = id < 0 ? (int)id : pb_client_next(client, &reply, ANSWER_MS);
    if (r < 0)
        return r;
    if (reply.id == (uint32_t)id && reply.type == PB_MSG_ERROR) {
        take_text(&reply, text);
        uint64_t error = pb_field_u64(&reply, PB_TAG_ERRNO, EPROTO);
        return error > 0 && error < 4096 ? -(int)error : -EPROTO;
    }
    if (reply.id != (uint32_t)id || reply.type != PB_MSG_DONE)
        return -EPROTO;
    *ret = (struct pb_talk){.client = client, .id = (uint32_t)id, .given = PB_CHANNEL_WINDOW};
    ret->credit = pb_field_u64(&reply, PB_TAG_VALUE, 0);
    return ret->credit <= CREDIT ? 0 : -EPROTO;
}

/* Lets the agent send as many bytes again as were handed out. */
static int give_room(struct pb_talk *talk)
{
    uint8_t buf[64];
    struct pb_frame_writer w;

    if (talk->consumed < PB_CHANNEL_WINDOW / 2)
        return 0;
    pb_frame_begin(&w, buf, sizeof(buf));
    pb_frame_put_u64(&w, PB_TAG_VALUE, talk->consumed);
    talk->given += talk->consumed;
    talk->consumed = 0;
    int r = send_frame(talk, &w, PB_MSG_WINDOW);
    /* The agent has closed the connection, but frames that it sent before may still be unread. */
    return r == -EPIPE || r == -ECONNRESET ? 0 : r;
}

static int take_frame(struct pb_talk *talk, const struct pb_frame *frame, struct pb_talk_event *ret)
{
    struct pb_field data;

    *ret = (struct pb_talk_event){0};
    if (frame->id != talk->id)
        return -EPROTO;
    switch (frame->type) {
    case PB_MSG_STREAM:
        if (pb_field_find(frame, PB_TAG_DATA, &data) < 0 || data.size > talk->given)
            return -EPROTO;
        talk->given -= data.size;
        talk->consumed += data.size;
        ret->type = PB_TALK_DATA;
        ret->data = data.data;
        ret->size = data.size;
        return 0;
    case PB_MSG_WINDOW: {
        uint64_t more = pb_field_u64(frame, PB_TAG_VALUE, 0);
        if (more > CREDIT - talk->credit)
            return -EPROTO;
        talk->credit += more;
        ret->type = PB_TALK_ROOM;
        return 0;
    }
    case PB_MSG_END:
    case PB_MSG_ERROR:
        ret->type = PB_TALK_END;
        ret->status = frame->type == PB_MSG_ERROR ? 1 : (int)pb_field_u64(frame, PB_TAG_STATUS, 0);
        take_text(frame, ret->text);
        talk->ended = 1;
        return 0;
    default:
        return -EPROTO;
    }
}

int pb_talk_next(struct pb_talk *talk, struct pb_talk_event *ret, int timeout_ms)
{
    struct pb_frame frame;

    if (talk->ended)
        return -ECONNRESET;
    int r = give_room(talk);
    if (r == 0)
        r = pb_client_next(talk->client, &frame, timeout_ms);
    return r < 0 ? r : take_frame(talk, &frame, ret);
}

long pb_talk_send(struct pb_talk *talk, const void *data, size_t size)
{
    uint8_t buf[PIECE + 64];
    const uint8_t *bytes = data;
    struct pb_frame_writer w;
    size_t done = 0;

    while (done < size && talk->credit > 0) {
        size_t n = size - done < PIECE ? size - done : PIECE;
        n = n < talk->credit ? n : (size_t)talk->credit;
        pb_frame_begin(&w, buf, sizeof(buf));
        pb_frame_put(&w, PB_TAG_DATA, bytes + done, n);
        int r = send_frame(talk, &w, PB_MSG_STREAM);
        if (r < 0)
            return r;
        talk->credit -= n;
        done += n;
    }
    return (long)done;
}

int pb_talk_interrupt(struct pb_talk *talk)
{
    return pb_client_signal(talk->client, PB_MSG_INTERRUPT, talk->id);
}
