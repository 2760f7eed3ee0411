/* write_perfetto: a timeline as a Perfetto trace.
 *
 * A packet sequence per track of samples: first its thread's descriptor, the call stacks as interned data,
 * then the samples (StreamingProfilePacket), each with its time. Perfetto shows them on the thread's track,
 * and flame graphs of any range of them. A slice of equal samples is written sample by sample. Times
 * are of the monotonic clock, which Perfetto assumes for StreamingProfilePackets; a snapshot relates it to
 * the other clocks and makes UTC the displayed one, so that traces of several machines can be compared. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/intern.h"
#include "profile/proto.h"
#include "profile/write.h"

/* Field numbers of trace_packet.proto and of its messages. */
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
    CLOCKS_CLOCK = 1,
    CLOCKS_PRIMARY = 2,
    TRACK_UUID = 1,
    TRACK_PROCESS = 3,
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

#define DEPTH_MAX 1024 /* the limit of trace processors */

struct perfetto {
    const struct pb_timeline *t;
    const struct pb_profile *p; /* the profile whose stacks are being written */
    struct pb_proto out;
    uint32_t *stack;
    /* The last sequence that has the node, frame or function. */
    uint32_t *used, *used_frame, *used_function;
    uint32_t sequence;
};

static void perfetto_done(struct perfetto *w)
{
    pb_proto_done(&w->out);
    free(w->stack);
    free(w->used);
    free(w->used_frame);
    free(w->used_function);
}

static size_t begin_packet(struct perfetto *w, size_t track, unsigned flags)
{
    size_t packet = pb_proto_begin(&w->out, PACKET);
    pb_proto_uint(&w->out, PACKET_SEQUENCE, track + 1);
    pb_proto_uint(&w->out, PACKET_FLAGS, flags);
    return packet;
}

static void put_thread(struct perfetto *w, size_t track, uint64_t start_us)
{
    const struct pb_track *t = pb_timeline_track(w->t, track);
    size_t packet = begin_packet(w, track, FLAG_CLEARED);
    size_t at = pb_proto_begin(&w->out, PACKET_THREAD);

    pb_proto_uint(&w->out, 1, (uint64_t)t->pid);
    pb_proto_uint(&w->out, 2, (uint64_t)t->tid);
    if (*t->name)
        pb_proto_text(&w->out, 5, t->name);
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

/* Perfetto attaches frames to a mapping; ours is one per kind of frame. */
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

    if (w->used_function[f.function] != w->sequence) {
        w->used_function[f.function] = w->sequence;
        put_interned_text(w, INTERNED_FUNCTION_NAMES, f.function + 1, function.name);
        put_interned_text(w, INTERNED_SOURCE_PATHS, f.function + 1, function.file);
    }
    size_t at = pb_proto_begin(&w->out, INTERNED_FRAMES);
    pb_proto_uint(&w->out, 1, id + 1);
    pb_proto_uint(&w->out, 2, f.function + 1);
    pb_proto_uint(&w->out, 3, (uint64_t)function.kind + 1);
    pb_proto_uint(&w->out, 4, id + 1); /* rel_pc: distinguishes the frames of a mapping */
    pb_proto_uint(&w->out, 5, f.function + 1);
    if (f.line > 0)
        pb_proto_uint(&w->out, 6, (uint64_t)f.line);
    pb_proto_end(&w->out, at);
}

static void put_callstack(struct perfetto *w, uint32_t node)
{
    size_t n = pb_profile_stack(w->p, node, w->stack, DEPTH_MAX);

    for (size_t i = 0; i < n; i++)
        if (w->used_frame[w->stack[i]] != w->sequence) {
            w->used_frame[w->stack[i]] = w->sequence;
            put_frame(w, w->stack[i]);
        }
    size_t at = pb_proto_begin(&w->out, INTERNED_CALLSTACKS);
    pb_proto_uint(&w->out, 1, node + 1);
    for (size_t i = n; i-- > 0;) /* outermost first */
        pb_proto_uint(&w->out, 2, w->stack[i] + 1);
    pb_proto_end(&w->out, at);
}

static void put_interned(struct perfetto *w, size_t track)
{
    const struct pb_track *t = pb_timeline_track(w->t, track);
    size_t packet = begin_packet(w, track, FLAG_NEEDED);
    size_t at = pb_proto_begin(&w->out, PACKET_INTERNED);

    w->sequence = (uint32_t)track + 1;
    put_mappings(w);
    for (size_t i = 0; i < t->n; i++) {
        const struct pb_slice *s = pb_timeline_slice(w->t, t->first + i);
        if (w->used[s->node] != w->sequence) {
            w->used[s->node] = w->sequence;
            put_callstack(w, s->node);
        }
    }
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, packet);
}

static uint64_t sample_time(const struct pb_slice *s, uint32_t i)
{
    return s->samples > 1 ? s->start + (uint64_t)((double)(s->end - s->start) / (s->samples - 1) * i)
                          : s->end;
}

static void put_samples(struct perfetto *w, size_t track, uint64_t start_us)
{
    const struct pb_track *t = pb_timeline_track(w->t, track);
    size_t packet = begin_packet(w, track, FLAG_NEEDED);
    uint64_t before = start_us;

    pb_proto_uint(&w->out, PACKET_TIMESTAMP, start_us * 1000);
    pb_proto_uint(&w->out, PACKET_CLOCK_ID, CLOCK_MONOTONIC_ID);
    size_t at = pb_proto_begin(&w->out, PACKET_PROFILE);
    for (size_t i = 0; i < t->n; i++) {
        const struct pb_slice *s = pb_timeline_slice(w->t, t->first + i);
        for (uint32_t k = 0; k < s->samples; k++) {
            uint64_t us = sample_time(s, k) / 1000;
            us = us > before ? us : before; /* steps are not negative */
            pb_proto_uint(&w->out, 1, s->node + 1);
            pb_proto_uint(&w->out, 2, us - before);
            before = us;
        }
    }
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, packet);
}

/* A snapshot of the machine's clocks, with UTC as the one to show. */
static void put_clocks(struct perfetto *w, const struct pb_profile_clocks *start)
{
    const struct {
        unsigned id;
        uint64_t ns;
    } clocks[] = {{CLOCK_BOOTTIME_ID, start->boot_ns},
                  {CLOCK_MONOTONIC_ID, start->monotonic_ns},
                  {CLOCK_REALTIME_ID, (uint64_t)start->utc_ns}};
    size_t packet = begin_packet(w, UINT32_MAX - 1, 0);
    size_t snapshot = pb_proto_begin(&w->out, PACKET_CLOCKS);

    for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        if (clocks[i].id == CLOCK_BOOTTIME_ID && !clocks[i].ns)
            continue; /* not known */
        size_t at = pb_proto_begin(&w->out, CLOCKS_CLOCK);
        pb_proto_uint(&w->out, 1, clocks[i].id);
        pb_proto_uint(&w->out, 2, clocks[i].ns);
        pb_proto_end(&w->out, at);
    }
    pb_proto_uint(&w->out, CLOCKS_PRIMARY, CLOCK_REALTIME_ID);
    pb_proto_end(&w->out, snapshot);
    pb_proto_end(&w->out, packet);
}

/* Names of processes: thread descriptors have no field for them. */
static void put_process(struct perfetto *w, size_t i)
{
    const struct pb_track *t = pb_timeline_track(w->t, i);
    size_t packet = begin_packet(w, i, 0);
    size_t track = pb_proto_begin(&w->out, PACKET_TRACK);

    pb_proto_uint(&w->out, TRACK_UUID, (uint64_t)t->pid);
    size_t at = pb_proto_begin(&w->out, TRACK_PROCESS);
    pb_proto_uint(&w->out, 1, (uint64_t)t->pid);
    pb_proto_text(&w->out, 6, t->process);
    pb_proto_end(&w->out, at);
    pb_proto_end(&w->out, track);
    pb_proto_end(&w->out, packet);
}

/* Makes room for the marks of any of the profiles. */
static int make_room(struct perfetto *w)
{
    size_t nodes = 1, frames = 1, functions = 1;

    for (size_t i = 0; i < pb_timeline_nprofiles(w->t); i++) {
        const struct pb_profile *p = pb_timeline_profile(w->t, i);
        nodes = pb_profile_nnodes(p) > nodes ? pb_profile_nnodes(p) : nodes;
        frames = pb_profile_nframes(p) > frames ? pb_profile_nframes(p) : frames;
        functions = pb_profile_nfunctions(p) > functions ? pb_profile_nfunctions(p) : functions;
    }
    w->stack = malloc(DEPTH_MAX * sizeof(*w->stack));
    w->used = calloc(nodes, sizeof(*w->used));
    w->used_frame = calloc(frames, sizeof(*w->used_frame));
    w->used_function = calloc(functions, sizeof(*w->used_function));
    return w->stack && w->used && w->used_frame && w->used_function ? 0 : -ENOMEM;
}

int pb_write_perfetto(FILE *out, const struct pb_timeline *t)
{
    _cleanup_(perfetto_done) struct perfetto w = {.t = t};
    struct pb_profile_clocks start = pb_timeline_start(t);
    uint64_t start_us = start.monotonic_ns / 1000;

    if (make_room(&w) < 0)
        return -ENOMEM;
    put_clocks(&w, &start);
    for (size_t i = 0; i < pb_timeline_ntracks(t); i++) {
        w.p = pb_timeline_track(t, i)->of;
        put_thread(&w, i, start_us);
        put_process(&w, i);
        put_interned(&w, i);
        put_samples(&w, i, start_us);
    }
    if (w.out.failed)
        return -ENOMEM;
    fwrite(w.out.at, 1, w.out.len, out);
    return ferror(out) ? -EIO : 0;
}
