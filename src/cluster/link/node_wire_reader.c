/* node_wire_reader: the asking end of an answer; see node_wire.h. Takes any bytes at all. */
#include "base/text.h"
#include "base/vector.h"
#include "cluster/link/node_wire.h"

#include "cluster/link/base64.h"
#include "control/packet.h"
#include "control/relay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pb_answer_reader_init(struct pb_answer_reader *r, size_t most, bool text)
{
    *r = (struct pb_answer_reader){.most = most, .text = text, .part = -1};
}

void pb_node_answer_done(struct pb_node_answer *a)
{
    for (size_t i = 0; i < a->nranks; i++) {
        free(a->ranks[i].output.at);
        free(a->ranks[i].errors.at);
    }
    free(a->ranks);
    free(a->output.at);
    free(a->errors.at);
    *a = (struct pb_node_answer){0};
}

void pb_answer_reader_done(struct pb_answer_reader *r)
{
    pb_node_answer_done(&r->answer);
    free(r->buffer);
    *r = (struct pb_answer_reader){0};
}

/* A sentence of a node is printed at a terminal: one line of it. */
static void copy_line(char *ret, size_t size, const void *from, size_t n)
{
    n = n < size - 1 ? n : size - 1;
    memcpy(ret, from, n);
    ret[n] = '\0';
    pb_text_clean(ret);
}

static int refuse(struct pb_answer_reader *r, int code, const char *why)
{
    snprintf(r->why, sizeof(r->why), "%s", why);
    return code;
}

static int append(struct pb_answer_reader *r, struct pb_bytes *to, const void *bytes, size_t n)
{
    if (n > r->most)
        return refuse(r, -EMSGSIZE, "it sends more than is taken from one node");
    /* Doubled at powers of two, so that no capacity is stored; one more byte for the NUL. */
    size_t need = to->n + n + 1, had = to->at ? to->n + 1 : 0, room = 64, grown = 64;
    while (room < had)
        room *= 2;
    while (grown < need)
        grown *= 2;
    if (!to->at || grown != room) {
        char *more = realloc(to->at, grown);
        if (!more)
            return refuse(r, -ENOMEM, "out of memory");
        to->at = more;
    }
    memcpy(to->at + to->n, bytes, n);
    to->n += n;
    to->at[to->n] = '\0';
    r->most -= n;
    return 0;
}

static int take_version(struct pb_answer_reader *r, const char *text)
{
    char node[PB_CLUSTER_TEXT] = "";
    int format = 0, n = sscanf(text, "%d %31s %255s", &format, r->answer.version, node);

    if (r->greeted || n < 1)
        return refuse(r, -EBADMSG, "what answers is not probing");
    if (format != PB_WIRE_FORMAT) {
        snprintf(r->why, sizeof(r->why), "it speaks format %d (probing %s), this one %d", format,
                 n > 1 ? r->answer.version : "?", PB_WIRE_FORMAT);
        return -EPROTO;
    }
    if (n != 3)
        return refuse(r, -EBADMSG, "what answers is not probing");
    copy_line(r->answer.node, sizeof(r->answer.node), node, strlen(node));
    copy_line(r->answer.version, sizeof(r->answer.version), r->answer.version, strlen(r->answer.version));
    r->greeted = true;
    return 0;
}

static int take_rank(struct pb_answer_reader *r, const char *text)
{
    struct pb_answer_part part = {0};
    struct pb_node_answer *a = &r->answer;
    char roles[PB_ROLES_TEXT];
    _Static_assert(sizeof(roles) == 192, "the width of %s below");
    int pid;
    uint32_t world;

    int n = sscanf(text, "%" SCNd32 " %" SCNd32 " %d %" SCNu64 " %" SCNu32 " %191s", &part.rank.rank,
                   &part.rank.local, &pid, &part.rank.start_time, &world, roles);
    part.rank.pid = pid;
    if (n != 6 || part.rank.rank < 0 || part.rank.local < -1 || pid < 1 || world > PB_CLUSTER_RANKS ||
        part.rank.start_time > INT64_MAX ||
        (strcmp(roles, "-") != 0 && pb_roles_parse(roles, &part.rank.roles) < 0))
        return refuse(r, -EBADMSG, "it tells of a rank that cannot be");
    for (size_t i = 0; i < a->nranks; i++)
        if (a->ranks[i].rank.rank == part.rank.rank)
            return refuse(r, -EBADMSG, "it tells of one rank twice");
    if (a->nranks == PB_WIRE_NODE_RANKS)
        return refuse(r, -EMSGSIZE, "it tells of more ranks than a node can have");
    if (pb_grow_full((void **)&a->ranks, a->nranks, sizeof(*a->ranks)) < 0)
        return refuse(r, -ENOMEM, "out of memory");
    r->part = (ssize_t)a->nranks;
    a->ranks[a->nranks++] = part;
    a->world = world > a->world ? world : a->world;
    return 0;
}

static int take_frame(struct pb_answer_reader *r, int kind, const unsigned char *bytes, size_t n)
{
    struct pb_node_answer *a = &r->answer;
    struct pb_answer_part *part = r->part >= 0 ? &a->ranks[r->part] : NULL;
    char text[PB_CLUSTER_TEXT + 64];

    if (!r->greeted && kind != PB_RELAY_VERSION)
        return refuse(r, -EBADMSG, "what answers is not probing");
    switch (kind) {
    case PB_RELAY_VERSION:
    case PB_RELAY_RANK:
        if (n >= sizeof(text))
            return refuse(r, -EBADMSG, "a frame is too long");
        memcpy(text, bytes, n);
        text[n] = '\0';
        return kind == PB_RELAY_RANK ? take_rank(r, text) : take_version(r, text);
    case PB_RELAY_OUTPUT:
        return append(r, part ? &part->output : &a->output, bytes, n);
    case PB_RELAY_ERRORS:
        return append(r, part ? &part->errors : &a->errors, bytes, n);
    case PB_RELAY_EXIT:
        if (!part || n != 1)
            return refuse(r, -EBADMSG, "an end frame without a begin");
        part->ended = true;
        part->status = bytes[0];
        r->part = -1;
        return 0;
    case PB_RELAY_END:
        if (n < 1)
            return refuse(r, -EBADMSG, "malformed end frame");
        a->status = bytes[0];
        copy_line(a->sentence, sizeof(a->sentence), bytes + 1, n - 1);
        a->whole = true;
        return 1;
    default:
        return refuse(r, -EBADMSG, "it sends a frame that this release does not know");
    }
}

/* The frames that are whole in the buffer. */
static int take_frames(struct pb_answer_reader *r)
{
    size_t at = 0, length;
    int e = 0;

    while (e == 0 && r->n - at >= PB_PACKET_HEAD) {
        int kind = pb_packet_parse(r->buffer + at, r->n - at, PB_RELAY_MAX, &length);
        if (kind <= 0)
            return refuse(r, -EBADMSG, r->greeted ? "a frame is too long" : "what answers is not probing");
        if (!r->greeted && kind != PB_RELAY_VERSION)
            return refuse(r, -EBADMSG, "what answers is not probing");
        if (length > r->n - at - PB_PACKET_HEAD)
            break;
        e = take_frame(r, kind, r->buffer + at + PB_PACKET_HEAD, length);
        at += PB_PACKET_HEAD + length;
    }
    if (at)
        memmove(r->buffer, r->buffer + at, r->n - at);
    r->n -= at;
    return e;
}

/* Room for n bytes more: one frame and what came behind it. */
static int make_room(struct pb_answer_reader *r, size_t n)
{
    size_t cap = r->cap ? r->cap : 4096;

    while (cap < r->n + n)
        cap *= 2;
    if (cap == r->cap)
        return 0;
    unsigned char *more = realloc(r->buffer, cap);
    if (!more)
        return refuse(r, -ENOMEM, "out of memory");
    r->buffer = more;
    r->cap = cap;
    return 0;
}

static int take_text(struct pb_answer_reader *r, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        int value = pb_base64_value(c);
        if (c == '\n' || c == '\r' || c == ' ' || c == '=')
            continue;
        if (value < 0)
            return refuse(r, -EBADMSG, "what answers is not probing");
        r->bits = r->bits << 6 | (uint32_t)value;
        r->nbits += 6;
        if (r->nbits >= 8) {
            r->nbits -= 8;
            r->buffer[r->n++] = (unsigned char)(r->bits >> r->nbits);
        }
    }
    return 0;
}

int pb_answer_reader_take(struct pb_answer_reader *r, const char *bytes, size_t n)
{
    enum { PIECE = 1 << 16 };

    if (r->why[0])
        return -EBADMSG;
    for (int e = 0; n && !r->answer.whole;) {
        size_t piece = n < PIECE ? n : PIECE;
        e = make_room(r, piece);
        if (e == 0 && r->text) {
            e = take_text(r, bytes, piece);
        } else if (e == 0) {
            memcpy(r->buffer + r->n, bytes, piece);
            r->n += piece;
        }
        r->answer.travelled += piece;
        if (e == 0)
            e = take_frames(r);
        if (e < 0)
            return e;
        bytes += piece;
        n -= piece;
    }
    return r->answer.whole;
}
