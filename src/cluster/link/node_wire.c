/* node_wire: the question, and the answering end; see node_wire.h. The asking end is node_wire_reader.c. */
#include "cluster/link/node_wire.h"

#include "base/cleanup.h"
#include "base/err.h"
#include "cluster/link/base64.h"
#include "cluster/select.h"
#include "control/packet.h"
#include "control/relay.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the question --- */

static void put_frame(FILE *out, enum pb_relay_kind kind, const void *bytes, size_t n)
{
    unsigned char head[PB_PACKET_HEAD];

    pb_packet_head(head, (unsigned char)kind, n);
    fwrite(head, sizeof(head), 1, out);
    if (n)
        fwrite(bytes, n, 1, out);
}

static int make_texts(const struct pb_node_question *q, char **ret, size_t *ret_n)
{
    FILE *out = open_memstream(ret, ret_n);

    if (!out)
        return -ENOMEM;
    fprintf(out, "%s%c%s%c%u%c", q->match ? q->match : "", 0, q->ranks ? q->ranks : "", 0, q->limit_ms, 0);
    for (size_t i = 0; i < q->nwords; i++)
        fwrite(q->words[i], 1, strlen(q->words[i]) + 1, out);
    bool failed = ferror(out);
    return fclose(out) != 0 || failed ? -ENOMEM : 0;
}

int pb_question_encode(const struct pb_node_question *q, char **ret, size_t *ret_length)
{
    _cleanup_free_ char *texts = NULL, *bytes = NULL;
    char version[64];
    size_t ntexts, n;

    int r = make_texts(q, &texts, &ntexts);
    if (r < 0)
        return r;
    if (ntexts > PB_WIRE_QUESTION_MAX || q->nwords > PB_WIRE_WORDS || q->nwords == 0)
        return -E2BIG;
    FILE *out = open_memstream(&bytes, &n);
    if (!out)
        return -ENOMEM;
    snprintf(version, sizeof(version), "%d %s -", PB_WIRE_FORMAT, PROBING_VERSION);
    put_frame(out, PB_RELAY_VERSION, version, strlen(version));
    put_frame(out, PB_RELAY_ARGUMENTS, texts, ntexts);
    put_frame(out, PB_RELAY_BEGIN, NULL, 0);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return -ENOMEM;
    char *line = malloc(PB_BASE64_SIZE(n) + 2);
    if (!line)
        return -ENOMEM;
    pb_base64_encode(bytes, n, line);
    strcpy(line + PB_BASE64_SIZE(n), "\n");
    *ret = line;
    *ret_length = PB_BASE64_SIZE(n) + 1;
    return 0;
}

/* Decodes up to the first character that is none of base64's; returns how many bytes. */
static size_t decode_line(const char *line, size_t n, unsigned char *ret)
{
    uint32_t bits = 0;
    int nbits = 0;
    size_t length = 0;

    for (size_t i = 0; i < n; i++) {
        int value = pb_base64_value((unsigned char)line[i]);
        if (value < 0)
            break;
        bits = bits << 6 | (uint32_t)value;
        nbits += 6;
        if (nbits >= 8) {
            nbits -= 8;
            ret[length++] = (unsigned char)(bits >> nbits);
        }
    }
    return length;
}

static int take_texts(struct pb_question_in *ret, const char *bytes, size_t n)
{
    size_t ntexts = 0;

    if (n == 0 || bytes[n - 1])
        return -EBADMSG;
    ret->text = malloc(n);
    if (!ret->text)
        return -ENOMEM;
    memcpy(ret->text, bytes, n);
    for (size_t at = 0; at < n; at += strlen(ret->text + at) + 1, ntexts++) {
        const char *text = ret->text + at;
        if (ntexts == 0)
            ret->q.match = text;
        else if (ntexts == 1)
            ret->q.ranks = *text ? text : NULL;
        else if (ntexts == 2)
            ret->q.limit_ms = (unsigned)strtoul(text, NULL, 10);
        else if (ret->q.nwords == PB_WIRE_WORDS)
            return -EBADMSG;
        else
            ret->words[ret->q.nwords++] = text;
    }
    ret->q.words = ret->words;
    bool good = ret->q.nwords && (!ret->q.ranks || pb_ranges_check(ret->q.ranks) == 0) && ret->q.limit_ms;
    return good && (!ret->q.match[0] || strchr(ret->q.match, '=')) ? 0 : -EBADMSG;
}

int pb_question_decode(const char *line, size_t n, struct pb_question_in *ret, struct pb_err *err)
{
    _cleanup_(pb_question_done) struct pb_question_in in = {0};
    _cleanup_free_ unsigned char *bytes = malloc(n + 1);
    bool started = false;
    int r = 0;

    if (!bytes)
        return pb_fail(err, -ENOMEM, "out of memory");
    size_t left = decode_line(line, n, bytes), length = 0;
    for (unsigned char *at = bytes; r == 0 && left; at += length, left -= length) {
        int kind = pb_packet_parse(at, left, PB_RELAY_MAX, &length);
        if (kind <= 0 || length > left - PB_PACKET_HEAD) {
            r = -EBADMSG;
            break;
        }
        char text[64] = "";
        memcpy(text, at + PB_PACKET_HEAD, length < sizeof(text) - 1 ? length : sizeof(text) - 1);
        if (kind == PB_RELAY_VERSION && !in.version[0]) {
            int format = atoi(text);
            sscanf(text, "%*d %31s", in.version);
            if (format != PB_WIRE_FORMAT)
                return pb_fail(err, -EPROTO,
                               "the question has format %d (of probing %s), and probing %s here knows %d",
                               format, in.version, PROBING_VERSION, PB_WIRE_FORMAT);
        } else if (kind == PB_RELAY_ARGUMENTS && in.version[0] && !in.text) {
            r = take_texts(&in, (const char *)at + PB_PACKET_HEAD, length);
        } else if (kind == PB_RELAY_BEGIN && in.text) {
            started = true;
        } else {
            r = -EBADMSG;
        }
        length += PB_PACKET_HEAD;
    }
    if (r < 0 || !started)
        return pb_fail(err, r == -ENOMEM ? r : -EBADMSG, "what came is no question of probing");
    *ret = pb_take(in, (struct pb_question_in){0});
    ret->q.words = ret->words;
    return 0;
}

void pb_question_done(struct pb_question_in *q)
{
    free(q->text);
    q->text = NULL;
}

/* --- the answering end --- */

static void write_all(struct pb_answer_writer *w, const void *bytes, size_t n)
{
    const char *at = bytes;

    if (w->fd < 0 && n)
        w->failed = -EMSGSIZE;
    while (n && !w->failed) {
        ssize_t more = write(w->fd, at, n);
        if (more < 0 && errno == EAGAIN)
            poll(&(struct pollfd){.fd = w->fd, .events = POLLOUT}, 1, -1);
        else if (more < 0 && errno != EINTR)
            w->failed = -errno;
        at += more > 0 ? more : 0;
        n -= more > 0 ? (size_t)more : 0;
    }
}

void pb_answer_flush(struct pb_answer_writer *w)
{
    if (w->fd >= 0)
        write_all(w, w->waiting, pb_take(w->nwaiting, 0));
}

static void put_plain(struct pb_answer_writer *w, const void *bytes, size_t n)
{
    if (n > sizeof(w->waiting) - w->nwaiting)
        pb_answer_flush(w);
    if (n > sizeof(w->waiting) - w->nwaiting) {
        write_all(w, bytes, n);
    } else if (n) {
        memcpy(w->waiting + w->nwaiting, bytes, n);
        w->nwaiting += n;
    }
}

/* As base64 in groups of three bytes: what makes no group waits for the next bytes, or for the end. */
static void put_bytes(struct pb_answer_writer *w, const void *bytes, size_t n)
{
    enum { PIECE = 3 * 256 };
    unsigned char piece[PIECE];
    char text[PB_BASE64_SIZE(PIECE)];
    const unsigned char *at = bytes;

    if (!w->text) {
        put_plain(w, bytes, n);
        return;
    }
    while (n && !w->failed) {
        memcpy(piece, w->partial, w->npartial);
        size_t take = n < PIECE - w->npartial ? n : PIECE - w->npartial;
        memcpy(piece + w->npartial, at, take);
        size_t have = w->npartial + take, whole = have / 3 * 3;
        pb_base64_encode(piece, whole, text);
        put_plain(w, text, PB_BASE64_SIZE(whole));
        w->npartial = have - whole;
        memcpy(w->partial, piece + whole, w->npartial);
        at += take;
        n -= take;
    }
}

static void put_answer(struct pb_answer_writer *w, enum pb_relay_kind kind, const void *bytes, size_t n)
{
    unsigned char head[PB_PACKET_HEAD];

    pb_packet_head(head, (unsigned char)kind, n);
    put_bytes(w, head, sizeof(head));
    put_bytes(w, bytes, n);
}

void pb_answer_begin(struct pb_answer_writer *w, const char *node)
{
    char text[PB_CLUSTER_TEXT + 64];

    int n = snprintf(text, sizeof(text), "%d %s %s", PB_WIRE_FORMAT, PROBING_VERSION, node);
    put_answer(w, PB_RELAY_VERSION, text, (size_t)n);
}

void pb_answer_rank(struct pb_answer_writer *w, const struct pb_cluster_rank *rank, uint32_t world)
{
    char text[PB_ROLES_TEXT + 128], roles[PB_ROLES_TEXT];

    pb_roles_format(&rank->roles, roles);
    int n = snprintf(text, sizeof(text), "%d %d %d %" PRIu64 " %u %s", rank->rank, rank->local,
                     (int)rank->pid, rank->start_time, world, roles[0] ? roles : "-");
    put_answer(w, PB_RELAY_RANK, text, (size_t)n);
}

void pb_answer_bytes(struct pb_answer_writer *w, bool errors, const void *bytes, size_t n)
{
    for (const char *at = bytes; n;) {
        size_t piece = n < PB_RELAY_MAX ? n : PB_RELAY_MAX;
        put_answer(w, errors ? PB_RELAY_ERRORS : PB_RELAY_OUTPUT, at, piece);
        at += piece;
        n -= piece;
    }
}

void pb_answer_exit(struct pb_answer_writer *w, int status)
{
    put_answer(w, PB_RELAY_EXIT, &(unsigned char){(unsigned char)status}, 1);
}

int pb_answer_end(struct pb_answer_writer *w, int status, const char *sentence)
{
    char text[512], last[5];

    text[0] = (char)status;
    int n = snprintf(text + 1, sizeof(text) - 1, "%s", sentence ? sentence : "");
    size_t length = (size_t)n < sizeof(text) - 2 ? (size_t)n + 1 : sizeof(text) - 1;
    put_answer(w, PB_RELAY_END, text, length);
    if (w->text) {
        pb_base64_encode(w->partial, w->npartial, last);
        size_t rest = PB_BASE64_SIZE(w->npartial);
        last[rest] = '\n';
        put_plain(w, last, rest + 1);
        w->npartial = 0;
    }
    pb_answer_flush(w);
    return w->failed;
}
