/* stream: writing; see stream.h. */
#include "profile/stream.h"

#include <errno.h>
#include <string.h>

#include "profile/stream_records.h"

void pb_stream_writer_init(struct pb_stream_writer *w)
{
    *w = (struct pb_stream_writer){0};
}

void pb_stream_writer_done(struct pb_stream_writer *w)
{
    pb_proto_done(&w->out);
}

static void put_number(struct pb_stream_writer *w, uint64_t number)
{
    if (!w->out.len) /* room for the head */
        for (int i = 0; i < PB_PACKET_HEAD; i++)
            pb_proto_packed(&w->out, 0);
    pb_proto_packed(&w->out, number);
}

static void put_text(struct pb_stream_writer *w, const char *text)
{
    pb_proto_text(&w->out, 0, text);
}

static void put_thread(struct pb_stream_writer *w, const struct pb_profile *names, uint32_t i)
{
    struct pb_profile_thread t = pb_profile_thread_at(names, i);

    put_number(w, PB_STREAM_THREAD);
    put_number(w, (uint64_t)t.pid);
    put_number(w, (uint64_t)t.tid);
    put_number(w, (uint64_t)((int64_t)t.rank + 1));
    put_text(w, t.name);
    put_text(w, t.process);
}

/* Numbers are given in the order of first sight, so those not sent yet are the last ones. */
static void put_new_names(struct pb_stream_writer *w, const struct pb_profile *names)
{
    for (; w->functions < pb_profile_nfunctions(names); w->functions++) {
        struct pb_profile_function f = pb_profile_function_at(names, (uint32_t)w->functions);
        put_number(w, PB_STREAM_FUNCTION);
        put_number(w, f.kind);
        put_text(w, f.name);
        put_text(w, f.file);
    }
    for (; w->frames < pb_profile_nframes(names); w->frames++) {
        struct pb_profile_frame f = pb_profile_frame_at(names, (uint32_t)w->frames);
        put_number(w, PB_STREAM_FRAME);
        put_number(w, f.function);
        put_number(w, f.line > 0 ? (uint64_t)f.line : 0);
    }
    w->nodes = w->nodes ? w->nodes : 1; /* the root is known */
    for (; w->nodes < pb_profile_nnodes(names); w->nodes++) {
        struct pb_node n = pb_profile_node_at(names, (uint32_t)w->nodes);
        put_number(w, PB_STREAM_NODE);
        put_number(w, n.parent);
        put_number(w, n.frame);
    }
    for (; w->threads < pb_profile_nthreads(names); w->threads++)
        put_thread(w, names, (uint32_t)w->threads);
}

static int add_sample(void *arg, const struct pb_profile *names, const struct pb_sample *sample)
{
    struct pb_stream_writer *w = arg;

    put_new_names(w, names);
    put_number(w, PB_STREAM_SAMPLE);
    put_number(w, sample->thread);
    put_number(w, sample->node);
    put_number(w, sample->flags);
    put_number(w, sample->weight);
    put_number(w, sample->when - w->when); /* wraps around if earlier, and back again in the reader */
    w->when = sample->when;
    return w->out.failed ? -ENOMEM : 0;
}

static void begin_epoch(void *arg, const struct pb_profile *names)
{
    struct pb_stream_writer *w = arg;

    (void)names;
    put_number(w, PB_STREAM_EPOCH);
    w->functions = w->frames = w->nodes = w->threads = 0;
}

void pb_stream_end(struct pb_stream_writer *w, unsigned why)
{
    put_number(w, PB_STREAM_END);
    put_number(w, why);
}

struct pb_sink pb_stream_sink(struct pb_stream_writer *w)
{
    return (struct pb_sink){w, add_sample, begin_epoch};
}

/* Sends threads that got a name or ran since; repeats cost little. */
static void put_states(struct pb_stream_writer *w, const struct pb_profile *names)
{
    for (size_t i = 0; i < w->threads && i < pb_profile_nthreads(names); i++) {
        struct pb_profile_thread t = pb_profile_thread_at(names, (uint32_t)i);
        put_number(w, PB_STREAM_STATE);
        put_number(w, i);
        put_number(w, t.ran);
        put_text(w, t.name);
    }
}

static void put_facts(struct pb_stream_writer *w, const struct pb_profile_facts *facts)
{
    struct pb_profile_facts copy = *facts;
    uint64_t *numbers[PB_STREAM_FACTS];

    pb_stream_facts(&copy, numbers);
    put_number(w, PB_STREAM_ABOUT);
    put_text(w, facts->title);
    put_text(w, facts->clock);
    put_number(w, (uint64_t)(facts->rate * 1000));
    put_number(w, (uint64_t)facts->start.utc_ns);
    put_number(w, facts->processes);
    put_number(w, facts->unverified);
    for (int i = 0; i < PB_STREAM_FACTS; i++)
        put_number(w, *numbers[i]);
}

int pb_stream_frame(struct pb_stream_writer *w, const struct pb_profile *names, const void **ret)
{
    put_states(w, names);
    put_facts(w, pb_profile_facts_of(names));
    size_t len = w->out.len;
    bool failed = w->out.failed, large = len > PB_STREAM_FRAME_MAX;
    w->out.len = 0;
    if (failed || large) {
        /* The reader lacks some names, so it must forget all of them. */
        w->out.failed = false;
        begin_epoch(w, names);
        return failed ? -ENOMEM : -EMSGSIZE;
    }
    pb_packet_head(w->out.at, PB_STREAM_KIND, len - PB_PACKET_HEAD);
    *ret = w->out.at;
    return (int)len;
}
