/* dialog: see dialog.h. */
#include "cli/talk/dialog.h"

#include "ask/parts.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/time.h"
#include "cli/cli.h"
#include "control/packet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER  sizeof(uint32_t)
#define ROOM    (PB_PACKET_HEAD + NUMBER + 2 * PB_DIALOG_MAX) /* one message, and bytes of the next */
#define SEND_MS 10000                                         /* for the process to take what is sent */

int pb_dialog_open(const struct pb_call *call, const char *kind, const char *arguments, struct pb_dialog *ret,
                   struct pb_err *err)
{
    char text[256];

    *ret = (struct pb_dialog){.pid = call->targets.at[0].pid, .buf = malloc(ROOM)};
    if (!ret->buf)
        return -ENOMEM;
    int r = pb_parts_session(&call->ask, ret->pid, false, call->timeout_ms, &ret->session, err);
    if (r < 0) {
        free(ret->buf);
        return r;
    }
    r = pb_talk_open(&ret->session.client, kind, arguments, strlen(arguments), call->timeout_ms, &ret->talk,
                     text);
    if (r < 0) {
        pb_dialog_close(ret);
        return pb_fail(err, r, "%s", text[0] ? text : strerror(-r));
    }
    pb_client_limit(&ret->session.client, 0);
    return 0;
}

void pb_dialog_close(struct pb_dialog *d)
{
    pb_session_done(&d->session);
    free(d->buf);
    d->buf = NULL;
}

/* Reads received bytes into buf. */
static int receive_bytes(struct pb_dialog *d, int timeout_ms)
{
    struct pb_talk_event event;

    if (d->ended)
        return -ENODATA;
    int r = pb_talk_next(&d->talk, &event, timeout_ms);
    if (r < 0)
        return r;
    if (event.type == PB_TALK_END) {
        snprintf(d->reason, sizeof(d->reason), "%s", event.text);
        d->status = event.status;
        d->ended = true;
        return -ENODATA;
    }
    if (event.type != PB_TALK_DATA)
        return 0;
    if (event.size > ROOM - d->len)
        return -EPROTO;
    memcpy(d->buf + d->len, event.data, event.size);
    d->len += event.size;
    return 0;
}

/* Sends all of it, and buffers what arrives in the meantime. */
static int send_bytes(struct pb_dialog *d, const char *data, size_t size)
{
    uint64_t end = pb_now_ns() + SEND_MS * PB_NS_PER_MS;

    while (size > 0) {
        long n = pb_talk_send(&d->talk, data, size);
        if (n < 0)
            return (int)n;
        data += n;
        size -= (size_t)n;
        if (size == 0)
            break;
        if (pb_now_ns() > end)
            return -ETIMEDOUT;
        int r = receive_bytes(d, 200);
        if (r < 0 && r != -ETIMEDOUT && r != -EINTR)
            return r;
    }
    return 0;
}

int64_t pb_dialog_send(struct pb_dialog *d, char letter, const char *text, size_t size)
{
    unsigned char head[PB_PACKET_HEAD + NUMBER];

    if (size > PB_DIALOG_MAX)
        return -EMSGSIZE;
    pb_packet_head(head, (unsigned char)letter, NUMBER + size);
    pb_store_u32(head + PB_PACKET_HEAD, ++d->last_number);
    int r = send_bytes(d, (const char *)head, sizeof(head));
    if (r == 0)
        r = send_bytes(d, text, size);
    return r < 0 ? r : (int64_t)d->last_number;
}

int pb_dialog_interrupt(struct pb_dialog *d)
{
    return pb_talk_interrupt(&d->talk);
}

static void drop_used(struct pb_dialog *d)
{
    memmove(d->buf, d->buf + d->used, d->len - d->used);
    d->len -= d->used;
    d->used = 0;
}

/* The deadline in ns of the clock; 0: none. */
static uint64_t end_of(int timeout_ms)
{
    return timeout_ms < 0 ? 0 : pb_now_ns() + (uint64_t)timeout_ms * PB_NS_PER_MS;
}

static int receive_until(struct pb_dialog *d, uint64_t end)
{
    uint64_t now = pb_now_ns();

    if (end && now >= end)
        return -ETIMEDOUT;
    return receive_bytes(d, end ? (int)((end - now) / PB_NS_PER_MS) + 1 : -1);
}

int pb_dialog_next(struct pb_dialog *d, struct pb_dialog_message *ret, int timeout_ms)
{
    uint64_t end = end_of(timeout_ms);

    drop_used(d);
    for (;;) {
        size_t length = 0;
        int letter = pb_packet_parse(d->buf, d->len, NUMBER + PB_DIALOG_MAX, &length);
        if (letter < 0 || (letter && length < NUMBER))
            return -EPROTO;
        if (letter && d->len - PB_PACKET_HEAD >= length) {
            const char *at = d->buf + PB_PACKET_HEAD;
            *ret = (struct pb_dialog_message){(char)letter, pb_load_u32(at), at + NUMBER, length - NUMBER};
            d->used = PB_PACKET_HEAD + length;
            return 0;
        }
        int r = receive_until(d, end);
        if (r < 0)
            return r;
    }
}

long pb_dialog_read(struct pb_dialog *d, char *ret, size_t size, int timeout_ms)
{
    uint64_t end = end_of(timeout_ms);

    drop_used(d);
    while (d->len == 0) {
        int r = receive_until(d, end);
        if (r == -ENODATA)
            return 0;
        if (r < 0)
            return r;
    }
    d->used = d->len < size ? d->len : size;
    memcpy(ret, d->buf, d->used);
    return (long)d->used;
}

const char *pb_dialog_reason(const struct pb_dialog *d)
{
    return d->reason;
}

int pb_dialog_ask_whole(const struct pb_call *call, const char *kind, const char *words, char **ret,
                        struct pb_err *err)
{
    static const char ok[] = "ok ";
    _cleanup_free_ char *text = malloc(PB_DIALOG_MAX + 2);
    struct pb_dialog dialog;
    size_t n = 0;
    long got = 0;

    if (!text)
        return pb_fail(err, -ENOMEM, "out of memory");
    int r = pb_dialog_open(call, kind, words, &dialog, err);
    if (r < 0)
        return r;
    while (n <= PB_DIALOG_MAX && (got = pb_dialog_read(&dialog, text + n, PB_DIALOG_MAX + 1 - n, -1)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    if (n > PB_DIALOG_MAX)
        r = pb_fail(err, -EMSGSIZE, "the answer is longer than %u bytes: ask for less", PB_DIALOG_MAX);
    else if (got < 0 && got != -ENODATA)
        r = pb_fail(err, (int)got, "the process ended, or its agent was detached");
    else if (strncmp(text, ok, strlen(ok)) != 0)
        r = pb_fail(err, dialog.status == PB_TALK_NOTHING ? PB_NOTHING : -EIO, "%s",
                    pb_dialog_reason(&dialog)[0] ? pb_dialog_reason(&dialog) : "the prompt ended");
    pb_dialog_close(&dialog);
    if (r < 0)
        return r;
    memmove(text, text + strlen(ok), n + 1 - strlen(ok));
    if (text[0] && text[strlen(text) - 1] == '\n')
        text[strlen(text) - 1] = '\0';
    *ret = text;
    text = NULL;
    return 0;
}

int pb_dialog_ask(const struct pb_call *call, const char *kind, const char *words, char *ret, size_t size,
                  struct pb_err *err)
{
    _cleanup_free_ char *text = NULL;

    int r = pb_dialog_ask_whole(call, kind, words, &text, err);
    if (r == 0)
        snprintf(ret, size, "%s", text);
    return r;
}
