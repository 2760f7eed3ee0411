/* stream_read: reading a stream of samples; see stream.h. Every number is checked before use: an unknown
 * number, a text beyond the frame, or an unknown kind of record ends the reading. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/vector.h"
#include "profile/stream.h"
#include "profile/stream_records.h"

#define TEXT_SIZE 4096

/* Maps the sender's numbers to ours; PB_PROFILE_NONE: there was no room. */
struct numbers {
    uint32_t *at;
    size_t n, cap;
};

struct pb_stream_reader {
    struct pb_profile *p;
    struct pb_sink sink;
    size_t numbers_max;
    struct numbers functions, frames, nodes, threads;
    uint64_t when;
    uint8_t *held; /* the beginning of an incomplete frame */
    size_t nheld, held_cap;
    bool broken, ended;
    unsigned why;
    char text[2][TEXT_SIZE];
};

int pb_stream_reader_new(size_t memory_max, const struct pb_sink *sink, struct pb_stream_reader **ret)
{
    struct pb_stream_reader *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    int result = pb_profile_new(memory_max, &r->p);
    if (result < 0) {
        free(r);
        return result;
    }
    r->sink = *sink;
    r->numbers_max = 16u << 20;
    *ret = r;
    return 0;
}

void pb_stream_reader_free(struct pb_stream_reader *r)
{
    if (!r)
        return;
    pb_profile_free(r->p);
    free(r->functions.at);
    free(r->frames.at);
    free(r->nodes.at);
    free(r->threads.at);
    free(r->held);
    free(r);
}

const struct pb_profile *pb_stream_names(const struct pb_stream_reader *r)
{
    return r->p;
}

static int push_number(struct pb_stream_reader *r, struct numbers *numbers, uint32_t number)
{
    if (numbers->n == r->numbers_max)
        return -ENOSPC;
    if (pb_grow((void **)&numbers->at, &numbers->cap, numbers->n, sizeof(*numbers->at), NULL) < 0)
        return -ENOMEM;
    numbers->at[numbers->n++] = number;
    return 0;
}

static const char *take_text(struct pb_cursor *c, char text[TEXT_SIZE])
{
    uint64_t key = pb_uleb(c), len = pb_uleb(c);

    text[0] = '\0';
    if (c->bad || key != 2 || len > pb_left(c)) {
        c->bad = true;
        return text;
    }
    size_t kept = len < TEXT_SIZE ? (size_t)len : TEXT_SIZE - 1;
    memcpy(text, c->at, kept);
    text[kept] = '\0';
    c->at += len;
    return text;
}

/* Our number for one of the sender's. */
static uint32_t map_number(struct pb_cursor *c, const struct numbers *numbers)
{
    uint64_t number = pb_uleb(c);

    if (c->bad || number >= numbers->n) {
        c->bad = true;
        return PB_PROFILE_NONE;
    }
    return numbers->at[number];
}

static int take_function(struct pb_stream_reader *r, struct pb_cursor *c)
{
    uint64_t kind = pb_uleb(c);
    const char *name = take_text(c, r->text[0]), *file = take_text(c, r->text[1]);

    if (c->bad || kind >= PB_FRAME_KINDS)
        return -EBADMSG;
    return push_number(r, &r->functions, pb_profile_function(r->p, (enum pb_frame_kind)kind, name, file));
}

static int take_frame(struct pb_stream_reader *r, struct pb_cursor *c)
{
    uint32_t function = map_number(c, &r->functions);
    uint64_t line = pb_uleb(c);

    if (c->bad)
        return -EBADMSG;
    return push_number(r, &r->frames, pb_profile_frame(r->p, function, line <= INT32_MAX ? (int)line : 0));
}

static int take_node(struct pb_stream_reader *r, struct pb_cursor *c)
{
    if (r->nodes.n == 0) { /* the root */
        int result = push_number(r, &r->nodes, PB_PROFILE_ROOT);
        if (result < 0)
            return result;
    }
    uint32_t parent = map_number(c, &r->nodes), frame = map_number(c, &r->frames);
    if (c->bad)
        return -EBADMSG;
    return push_number(r, &r->nodes, pb_profile_node(r->p, parent, frame));
}

static int take_thread(struct pb_stream_reader *r, struct pb_cursor *c)
{
    uint64_t pid = pb_uleb(c), tid = pb_uleb(c), rank = pb_uleb(c); /* rank: 0: none */
    const char *name = take_text(c, r->text[0]), *process = take_text(c, r->text[1]);

    if (c->bad || pid > INT32_MAX || tid > INT32_MAX || rank > INT32_MAX)
        return -EBADMSG;
    uint32_t thread = pb_profile_thread(r->p, (pid_t)pid, (pid_t)tid, name, process);
    pb_profile_rank_thread(r->p, thread, (int32_t)rank - 1);
    return push_number(r, &r->threads, thread);
}

static int take_sample(struct pb_stream_reader *r, struct pb_cursor *c)
{
    struct pb_sample s = {.thread = map_number(c, &r->threads), .node = map_number(c, &r->nodes)};
    uint64_t flags = pb_uleb(c), weight = pb_uleb(c), step = pb_uleb(c);

    if (c->bad || flags > (PB_SAMPLE_WAITING | PB_SAMPLE_GIL) || weight > UINT32_MAX)
        return -EBADMSG;
    r->when += step;
    s.when = r->when;
    s.flags = (unsigned)flags;
    s.weight = (uint32_t)weight;
    if (s.thread == PB_PROFILE_NONE || s.node == PB_PROFILE_NONE || r->sink.add(r->sink.arg, r->p, &s) < 0)
        pb_profile_facts(r->p)->failed += weight; /* until the sender's facts come, which do not have it */
    return 0;
}

static int take_state(struct pb_stream_reader *r, struct pb_cursor *c)
{
    uint32_t thread = map_number(c, &r->threads);
    uint64_t ran = pb_uleb(c);
    const char *name = take_text(c, r->text[0]);

    if (c->bad)
        return -EBADMSG;
    if (thread == PB_PROFILE_NONE)
        return 0;
    pb_profile_name_thread(r->p, thread, name);
    if (ran)
        pb_profile_mark_ran(r->p, thread);
    return 0;
}

static int take_about(struct pb_stream_reader *r, struct pb_cursor *c)
{
    struct pb_profile_facts facts = {0};
    uint64_t *numbers[PB_STREAM_FACTS];

    snprintf(facts.title, sizeof(facts.title), "%.255s", take_text(c, r->text[0]));
    facts.clock = pb_profile_clock_named(take_text(c, r->text[1]));
    facts.rate = (double)pb_uleb(c) / 1000;
    facts.start.utc_ns = (int64_t)pb_uleb(c);
    facts.processes = (unsigned)pb_uleb(c);
    facts.unverified = pb_uleb(c);
    pb_stream_facts(&facts, numbers);
    for (int i = 0; i < PB_STREAM_FACTS; i++)
        *numbers[i] = pb_uleb(c);
    if (c->bad)
        return -EBADMSG;
    *pb_profile_facts(r->p) = facts;
    return 0;
}

static int take_epoch(struct pb_stream_reader *r)
{
    if (r->sink.begin_epoch)
        r->sink.begin_epoch(r->sink.arg, r->p);
    r->functions.n = r->frames.n = r->nodes.n = r->threads.n = 0;
    return pb_profile_begin_epoch(r->p, NULL, 0, NULL, 0);
}

static int take_end(struct pb_stream_reader *r, struct pb_cursor *c)
{
    uint64_t why = pb_uleb(c);

    if (c->bad || why > UINT32_MAX)
        return -EBADMSG;
    r->ended = true;
    r->why = (unsigned)why;
    return 0;
}

bool pb_stream_ended(const struct pb_stream_reader *r, unsigned *ret_why)
{
    if (r->ended)
        *ret_why = r->why;
    return r->ended;
}

static int take_record(struct pb_stream_reader *r, struct pb_cursor *c)
{
    switch (pb_uleb(c)) {
    case PB_STREAM_FUNCTION:
        return take_function(r, c);
    case PB_STREAM_FRAME:
        return take_frame(r, c);
    case PB_STREAM_NODE:
        return take_node(r, c);
    case PB_STREAM_THREAD:
        return take_thread(r, c);
    case PB_STREAM_SAMPLE:
        return take_sample(r, c);
    case PB_STREAM_STATE:
        return take_state(r, c);
    case PB_STREAM_ABOUT:
        return take_about(r, c);
    case PB_STREAM_EPOCH:
        return take_epoch(r);
    case PB_STREAM_END:
        return take_end(r, c);
    default:
        return -EBADMSG;
    }
}

static int keep_incomplete(struct pb_stream_reader *r, const uint8_t *data, size_t len)
{
    if (r->held_cap - r->nheld < len) {
        size_t cap = 2 * r->held_cap + len;
        uint8_t *more = realloc(r->held, cap);
        if (!more)
            return -ENOMEM;
        r->held = more;
        r->held_cap = cap;
    }
    memcpy(r->held + r->nheld, data, len);
    r->nheld += len;
    return 0;
}

/* Reads all complete frames. Returns how many bytes they have. */
static long take_frames(struct pb_stream_reader *r, const uint8_t *data, size_t len)
{
    size_t done = 0, records;

    while (len - done >= PB_PACKET_HEAD) {
        if (pb_packet_parse(data + done, len - done, PB_STREAM_FRAME_MAX, &records) != PB_STREAM_KIND)
            return -EBADMSG;
        if (len - done - PB_PACKET_HEAD < records)
            break;
        const uint8_t *at = data + done + PB_PACKET_HEAD;
        struct pb_cursor c = {.at = at, .end = at + records};
        for (int result = 0; c.at < c.end;)
            if ((result = take_record(r, &c)) < 0)
                return result;
        done += PB_PACKET_HEAD + records;
    }
    return (long)done;
}

int pb_stream_feed(struct pb_stream_reader *r, const void *data, size_t len)
{
    if (r->broken)
        return -EBADMSG;
    if (len == 0)
        return 0;
    int result = keep_incomplete(r, data, len);
    long done = result < 0 ? result : take_frames(r, r->held, r->nheld);
    if (done < 0) {
        r->broken = true; /* part of a frame was used */
        return (int)done;
    }
    r->nheld -= (size_t)done;
    memmove(r->held, r->held + done, r->nheld);
    return 0;
}
