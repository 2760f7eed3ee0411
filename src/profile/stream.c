/* stream: writing; see stream.h. */
#include "profile/stream.h"

#include <errno.h>
#include <string.h>

#include "profile/stream_records.h"

#define LENGTH_BYTES 4 /* of a frame, ahead of its records */

void pb_stream_writer_init(struct pb_stream_writer *w)
{
    *w = (struct pb_stream_writer){0};
}

void pb_stream_writer_done(struct pb_stream_writer *w)
{
    pb_proto_done(&w->out);
}

static void put(struct pb_stream_writer *w, uint64_t number)
{
    if (!w->out.len) /* room for the length */
        for (int i = 0; i < LENGTH_BYTES; i++)
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

    put(w, PB_STREAM_THREAD);
    put(w, (uint64_t)t.pid);
    put(w, (uint64_t)t.tid);
    put_text(w, t.name);
    put_text(w, t.process);
}

/* Names are numbered in the order in which they were first seen: those that were not sent are the last ones.
 */
static void put_new_names(struct pb_stream_writer *w, const struct pb_profile *names)
{
    for (; w->functions < pb_profile_nfunctions(names); w->functions++) {
        struct pb_profile_function f = pb_profile_function_at(names, (uint32_t)w->functions);
        put(w, PB_STREAM_FUNCTION);
        put(w, f.kind);
        put_text(w, f.name);
        put_text(w, f.file);
    }
    for (; w->frames < pb_profile_nframes(names); w->frames++) {
        struct pb_profile_frame f = pb_profile_frame_at(names, (uint32_t)w->frames);
        put(w, PB_STREAM_FRAME);
        put(w, f.function);
        put(w, f.line > 0 ? (uint64_t)f.line : 0);
    }
    w->nodes = w->nodes ? w->nodes : 1; /* the root is known */
    for (; w->nodes < pb_profile_nnodes(names); w->nodes++) {
        struct pb_node n = pb_profile_node_at(names, (uint32_t)w->nodes);
        put(w, PB_STREAM_NODE);
        put(w, n.parent);
        put(w, n.frame);
    }
    for (; w->threads < pb_profile_nthreads(names); w->threads++)
        put_thread(w, names, (uint32_t)w->threads);
}

static int add(void *arg, const struct pb_profile *names, const struct pb_sample *sample)
{
    struct pb_stream_writer *w = arg;

    put_new_names(w, names);
    put(w, PB_STREAM_SAMPLE);
    put(w, sample->thread);
    put(w, sample->node);
    put(w, sample->flags);
    put(w, sample->weight);
    put(w, sample->when - w->when); /* wraps around where it is earlier, and back again at the reader */
    w->when = sample->when;
    return w->out.failed ? -ENOMEM : 0;
}

static void begin_epoch(void *arg, const struct pb_profile *names)
{
    struct pb_stream_writer *w = arg;

    (void)names;
    put(w, PB_STREAM_EPOCH);
    w->functions = w->frames = w->nodes = w->threads = 0;
}

void pb_stream_end(struct pb_stream_writer *w, unsigned why)
{
    put(w, PB_STREAM_END);
    put(w, why);
}

struct pb_sink pb_stream_sink(struct pb_stream_writer *w)
{
    return (struct pb_sink){w, add, begin_epoch};
}

/* Threads that got a name or ran since, which costs little to say again. */
static void put_states(struct pb_stream_writer *w, const struct pb_profile *names)
{
    for (size_t i = 0; i < w->threads && i < pb_profile_nthreads(names); i++) {
        struct pb_profile_thread t = pb_profile_thread_at(names, (uint32_t)i);
        put(w, PB_STREAM_STATE);
        put(w, i);
        put(w, t.ran);
        put_text(w, t.name);
    }
}

static void put_facts(struct pb_stream_writer *w, const struct pb_profile_facts *facts)
{
    struct pb_profile_facts copy = *facts;
    uint64_t *numbers[PB_STREAM_FACTS];

    pb_stream_facts(&copy, numbers);
    put(w, PB_STREAM_ABOUT);
    put_text(w, facts->title);
    put_text(w, facts->clock);
    put(w, (uint64_t)(facts->rate * 1000));
    put(w, (uint64_t)facts->start.utc_ns);
    put(w, facts->processes);
    put(w, facts->unverified);
    for (int i = 0; i < PB_STREAM_FACTS; i++)
        put(w, *numbers[i]);
}

int pb_stream_frame(struct pb_stream_writer *w, const struct pb_profile *names, const void **ret)
{
    put_states(w, names);
    put_facts(w, pb_profile_facts_of(names));
    size_t len = w->out.len;
    bool failed = w->out.failed, large = len > PB_STREAM_FRAME_MAX;
    w->out.len = 0;
    if (failed || large) {
        /* The reader has not got some names: it is to forget them all. */
        w->out.failed = false;
        begin_epoch(w, names);
        return failed ? -ENOMEM : -EMSGSIZE;
    }
    uint32_t records = (uint32_t)(len - LENGTH_BYTES);
    memcpy(w->out.at, &records, sizeof(records));
    *ret = w->out.at;
    return (int)len;
}
