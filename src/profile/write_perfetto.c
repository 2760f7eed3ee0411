/* write_perfetto: a profile as a Perfetto trace.
 *
 * A packet sequence a thread: first its descriptor, the call stacks as interned data, then the samples
 * (StreamingProfilePacket), each with its time. Perfetto shows them on the thread's track, and flame graphs
 * of any range of them. A span of samples that were the same is written out sample by sample. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "profile/intern.h"
#include "profile/proto.h"
#include "profile/write.h"

/* Field numbers of trace_packet.proto and what it holds. */
enum {
    PACKET = 1,
    PACKET_CLOCKS = 6,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_INTERNED = 12,
    PACKET_FLAGS = 13,
    PACKET_THREAD = 44,
    PACKET_PROFILE = 54,
    PACKET_CLOCK_ID = 58,
    PACKET_TRACK = 60,
    INTERNED_FUNCTION_NAMES = 5,
    INTERNED_FRAMES = 6,
    INTERNED_CALLSTACKS = 7,
    INTERNED_MAPPING_PATHS = 17,
    INTERNED_SOURCE_PATHS = 18,
    INTERNED_MAPPINGS = 19,
    FLAG_CLEARED = 1,
    FLAG_NEEDED = 2,
    CLOCK_REALTIME_ID = 1,
    CLOCK_MONOTONIC_ID = 3,
    CLOCK_BOOTTIME_ID = 6,
};

#define DEPTH_MAX 1024 /* what trace processors take */

struct perfetto {
    const struct pb_profile *p;
    struct pb_proto out;
    uint32_t *stack;
    bool *used; /* of nodes, frames and functions in one sequence */
    bool *used_frame;
    bool *used_function;
};

static void perfetto_done(struct perfetto *w)
{
    pb_proto_done(&w->out);
    free(w->stack);
    free(w->used);
    free(w->used_frame);
    free(w->used_function);
}

static size_t begin_packet(struct perfetto *w, uint32_t thread, unsigned flags)
{
    size_t packet = pb_proto_begin(&w->out, PACKET);
    pb_proto_uint(&w->out, PACKET_SEQUENCE, thread + 1);
    pb_proto_uint(&w->out, PACKET_FLAGS, flags);
    return packet;
}

static void put_thread(struct perfetto *w, uint32_t thread, uint64_t start_us)
{
    struct pb_profile_thread t = pb_profile_thread_at(w->p, thread);
    size_t packet = begin_packet(w, thread, FLAG_CLEARED);
    size_t at = pb_proto_begin(&w->out, PACKET_THREAD);

    pb_proto_uint(&w->out, 1, (uint64_t)t.pid);
    pb_proto_uint(&w->out, 2, (uint64_t)t.tid);
    if (*t.name)
        pb_proto_text(&w->out, 5, t.name);
    pb_proto_uint(&w->out, 6, start_us);
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, packet);
}

static void put_interned_text(struct perfetto *w, unsigned field, uint64_t id, const char *text)
{
    size_t at = pb_proto_begin(&w->out, field);
    pb_proto_uint(&w->out, 1, id);
    pb_proto_text(&w->out, 2, text);
    pb_proto_end(&w->out, at);
}

/* A mapping is what Perfetto hangs frames on; ours is one for the kind of frame. */
static void put_mappings(struct perfetto *w)
{
    static const char *const names[PB_FRAME_KINDS] = {"python", "native", "waiting", "thread", "process"};

    for (unsigned kind = 0; kind <= PB_FRAME_WAIT; kind++)
        put_interned_text(w, INTERNED_MAPPING_PATHS, kind + 1, names[kind]);
    for (unsigned kind = 0; kind <= PB_FRAME_WAIT; kind++) {
        size_t at = pb_proto_begin(&w->out, INTERNED_MAPPINGS);
        pb_proto_uint(&w->out, 1, kind + 1);
        pb_proto_uint(&w->out, 7, kind + 1);
        pb_proto_end(&w->out, at);
    }
}

static void put_frame(struct perfetto *w, uint32_t id)
{
    struct pb_profile_frame f = pb_profile_frame_at(w->p, id);
    struct pb_profile_function function = pb_profile_function_at(w->p, f.function);

    if (!w->used_function[f.function]) {
        w->used_function[f.function] = true;
        put_interned_text(w, INTERNED_FUNCTION_NAMES, f.function + 1, function.name);
        put_interned_text(w, INTERNED_SOURCE_PATHS, f.function + 1, function.file);
    }
    size_t at = pb_proto_begin(&w->out, INTERNED_FRAMES);
    pb_proto_uint(&w->out, 1, id + 1);
    pb_proto_uint(&w->out, 2, f.function + 1);
    pb_proto_uint(&w->out, 3, (uint64_t)function.kind + 1);
    pb_proto_uint(&w->out, 4, id + 1); /* rel_pc: frames of a mapping are told apart by it */
    pb_proto_uint(&w->out, 5, f.function + 1);
    if (f.line > 0)
        pb_proto_uint(&w->out, 6, (uint64_t)f.line);
    pb_proto_end(&w->out, at);
}

static void put_callstack(struct perfetto *w, uint32_t node)
{
    size_t n = pb_profile_stack(w->p, node, w->stack, DEPTH_MAX);

    for (size_t i = 0; i < n; i++)
        if (!w->used_frame[w->stack[i]]) {
            w->used_frame[w->stack[i]] = true;
            put_frame(w, w->stack[i]);
        }
    size_t at = pb_proto_begin(&w->out, INTERNED_CALLSTACKS);
    pb_proto_uint(&w->out, 1, node + 1);
    for (size_t i = n; i-- > 0;) /* outermost first */
        pb_proto_uint(&w->out, 2, w->stack[i] + 1);
    pb_proto_end(&w->out, at);
}

static void put_interned(struct perfetto *w, uint32_t thread)
{
    size_t nnodes = pb_profile_nnodes(w->p);
    size_t packet = begin_packet(w, thread, FLAG_NEEDED);
    size_t at = pb_proto_begin(&w->out, PACKET_INTERNED);

    for (size_t i = 0; i < nnodes; i++)
        w->used[i] = false;
    for (size_t i = 0; i < pb_profile_nframes(w->p); i++)
        w->used_frame[i] = false;
    for (size_t i = 0; i < pb_profile_nfunctions(w->p); i++)
        w->used_function[i] = false;
    put_mappings(w);
    for (size_t i = 0; i < pb_profile_nspans(w->p); i++) {
        struct pb_profile_span s = pb_profile_span_at(w->p, i);
        if (s.thread == thread && !w->used[s.node]) {
            w->used[s.node] = true;
            put_callstack(w, s.node);
        }
    }
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, packet);
}

static uint64_t sample_time(const struct pb_profile_span *s, uint32_t i)
{
    return s->samples > 1 ? s->start + (s->end - s->start) / (s->samples - 1) * i : s->start;
}

static void put_samples(struct perfetto *w, uint32_t thread, uint64_t start_us)
{
    size_t packet = begin_packet(w, thread, FLAG_NEEDED);
    uint64_t before = start_us;

    pb_proto_uint(&w->out, PACKET_TIMESTAMP, start_us * 1000);
    pb_proto_uint(&w->out, PACKET_CLOCK_ID, CLOCK_MONOTONIC_ID);
    size_t at = pb_proto_begin(&w->out, PACKET_PROFILE);
    for (size_t i = 0; i < pb_profile_nspans(w->p); i++) {
        struct pb_profile_span s = pb_profile_span_at(w->p, i);
        for (uint32_t k = 0; s.thread == thread && k < s.samples; k++) {
            uint64_t us = sample_time(&s, k) / 1000;
            pb_proto_uint(&w->out, 1, s.node + 1);
            pb_proto_uint(&w->out, 2, us - before);
            before = us;
        }
    }
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, packet);
}

/* How the clocks stand to each other. The trace's own is the time since boot, which we take to be the
 * monotonic one: they differ by how long the machine was suspended. */
static void put_clocks(struct perfetto *w, const struct pb_profile_facts *f)
{
    const struct {
        unsigned id;
        uint64_t ns;
    } clocks[] = {{CLOCK_BOOTTIME_ID, f->start_ns},
                  {CLOCK_MONOTONIC_ID, f->start_ns},
                  {CLOCK_REALTIME_ID, (uint64_t)f->start_utc_ns}};
    size_t packet = begin_packet(w, UINT32_MAX - 1, 0);
    size_t snapshot = pb_proto_begin(&w->out, PACKET_CLOCKS);

    for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        size_t at = pb_proto_begin(&w->out, 1);
        pb_proto_uint(&w->out, 1, clocks[i].id);
        pb_proto_uint(&w->out, 2, clocks[i].ns);
        pb_proto_end(&w->out, at);
    }
    pb_proto_end(&w->out, snapshot);
    pb_proto_end(&w->out, packet);
}

/* Names of processes, which thread descriptors have no place for. */
static void put_process(struct perfetto *w, uint32_t thread)
{
    struct pb_profile_thread t = pb_profile_thread_at(w->p, thread);
    size_t packet = begin_packet(w, thread, 0);
    size_t track = pb_proto_begin(&w->out, PACKET_TRACK);

    pb_proto_uint(&w->out, 1, (uint64_t)t.pid);
    size_t at = pb_proto_begin(&w->out, 3);
    pb_proto_uint(&w->out, 1, (uint64_t)t.pid);
    pb_proto_text(&w->out, 6, t.process);
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, track);
    pb_proto_end(&w->out, packet);
}

int pb_write_perfetto(FILE *out, const struct pb_profile *p)
{
    _cleanup_(perfetto_done) struct perfetto w = {.p = p};
    const struct pb_profile_facts *f = pb_profile_facts_of(p);

    w.stack = malloc(DEPTH_MAX * sizeof(*w.stack));
    w.used = calloc(pb_profile_nnodes(p) + 1, sizeof(*w.used));
    w.used_frame = calloc(pb_profile_nframes(p) + 1, sizeof(*w.used_frame));
    w.used_function = calloc(pb_profile_nfunctions(p) + 1, sizeof(*w.used_function));
    if (!w.stack || !w.used || !w.used_frame || !w.used_function)
        return -ENOMEM;
    put_clocks(&w, f);
    for (uint32_t i = 0; i < pb_profile_nthreads(p); i++) {
        if (pb_profile_thread_at(p, i).hidden)
            continue;
        put_thread(&w, i, f->start_ns / 1000);
        put_process(&w, i);
        put_interned(&w, i);
        put_samples(&w, i, f->start_ns / 1000);
    }
    if (w.out.failed)
        return -ENOMEM;
    fwrite(w.out.at, 1, w.out.len, out);
    return ferror(out) ? -EIO : 0;
}
